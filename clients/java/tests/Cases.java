final class Cases {
    private Cases() {}

    static void serve(int port) {}
}

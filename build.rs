//! How the library is linked: functions that are called where nothing may fail come to us first, see
//! `src/pg/memory.rs`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for argument in
        ["--wrap=CopyErrorData", "--wrap=errstart", "--wrap=__cxa_thread_atexit_impl", "-Bsymbolic-functions"]
    {
        println!("cargo:rustc-cdylib-link-arg=-Wl,{argument}");
    }
}

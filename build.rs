//! How the library is linked.
//!
//! The linker redirects calls of four functions to functions of ours (`src/pg/wrapped.rs`), since their callers
//! cannot handle a lack of memory; see `src/pg/memory.rs`. `-Bsymbolic-functions` binds the library's calls of its own
//! functions within the library. `--no-gc-sections` keeps what the library tells of its SQL, from which
//! `scripts/schema.sh` makes the script of CREATE EXTENSION.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for argument in [
        "--wrap=CopyErrorData",
        "--wrap=FreeErrorData",
        "--wrap=errstart",
        "--wrap=__cxa_thread_atexit_impl",
        "-Bsymbolic-functions",
        "--no-gc-sections",
    ] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,{argument}");
    }
}

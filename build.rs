//! How the library is compiled and linked.
//!
//! Compiled: code that depends on the server's version is conditional on `before_pg16` to `before_pg19`, which are set if
//! the library is built for an older version. So a newer version than all of them takes the newest branch, and the compiler
//! checks it.
//!
//! Linked: the linker redirects calls of four functions to functions of ours, since their callers cannot handle a lack
//! of memory; `src/pg/memory.rs` has the functions and the reason. `-Bsymbolic-functions` binds the library's calls of
//! its own functions within the library. `--no-gc-sections` keeps the descriptions of its SQL functions, from which
//! `scripts/schema.sh` makes the script of CREATE EXTENSION.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let built_for = |version: u32| env::var_os(format!("CARGO_FEATURE_PG{version}")).is_some();
    for version in 16..=19 {
        println!("cargo:rustc-check-cfg=cfg(before_pg{version})");
        if (15..version).any(built_for) {
            println!("cargo:rustc-cfg=before_pg{version}");
        }
    }
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

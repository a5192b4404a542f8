//! The libraries that this process has loaded, and what they export.

use super::raw::text_of;
use std::ffi::{CStr, c_void};
use std::path::Path;
use std::ptr::NonNull;

/// The address that a loaded library exports under this name. PostgreSQL loads extensions in such a way that their
/// names are found here.
pub fn exported(name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: the name is terminated.
    NonNull::new(unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) })
}

/// The name of the library that has this address, without directory and suffix.
pub fn library_of(address: NonNull<c_void>) -> Option<String> {
    // SAFETY: zeros are a valid answer, which the call fills in. The name in it is null or a terminated string, which is
    // copied while the library is loaded.
    let path = unsafe {
        let mut told: libc::Dl_info = std::mem::zeroed();
        let is_known = libc::dladdr(address.as_ptr(), &mut told) != 0;
        text_of(told.dli_fname).filter(|_| is_known)?
    };
    Path::new(&path).file_stem().map(|name| name.to_string_lossy().into_owned())
}

/// How many libraries this process has ever loaded; `None` if the system does not tell. This is much cheaper than
/// [`exported`], which looks into all of them.
#[cfg(target_os = "linux")]
pub fn libraries_loaded() -> Option<u64> {
    /// Takes the number down from the first library, and asks for no other.
    unsafe extern "C" fn take(library: *mut libc::dl_phdr_info, _size: usize, number: *mut c_void) -> libc::c_int {
        // SAFETY: the loader passes a valid description, and `number` is the variable below.
        unsafe { *number.cast::<Option<u64>>() = Some((*library).dlpi_adds) };
        1
    }
    let mut number: Option<u64> = None;
    // SAFETY: the callback takes what it is passed here.
    unsafe { libc::dl_iterate_phdr(Some(take), (&raw mut number).cast()) };
    number
}

/// As above.
#[cfg(not(target_os = "linux"))]
pub fn libraries_loaded() -> Option<u64> {
    None
}

//! The program `strait`: everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    // Libraries that don't name their provider find this one; a second call is the only way to fail.
    let _ = rustls::crypto::ring::default_provider().install_default();
    strait::cli::main(std::env::args_os())
}

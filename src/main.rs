//! The program `strait`. All code is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    // Libraries that do not name their provider use this one. The call only fails if it is
    // repeated.
    let _ = rustls::crypto::ring::default_provider().install_default();
    strait::cli::main(std::env::args_os())
}

//! The binary `strait`.

use clap::Parser;

#[derive(Parser)]
struct Top {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Serve(strait::config::ServeArgs),
    Certs(strait::cli::certs::CertsArgs),
}

#[tokio::main]
async fn main() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    match Top::parse().command {
        Command::Serve(args) => {
            tracing_subscriber::fmt()
                .with_env_filter(&args.log_level)
                .with_writer(std::io::stderr)
                .init();
            strait::server::run(&args).await.unwrap();
        }
        Command::Certs(args) => strait::cli::certs::run(&args, &mut std::io::stdout()).unwrap(),
    }
}

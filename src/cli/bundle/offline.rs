//! Server for `strait ui --bundle FILE`: it serves the page and the admin API from the responses in
//! a bundle.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use tempfile::TempDir;
use tokio::net::TcpListener;

use super::archive::SupportBundle;
use crate::cli::failure::CommandFailure;
use crate::cli::output::text;
use crate::cli::proxy;
use strait_admin_api::Proxy;
use strait_server::admin::{StoredAnswer, StoredAnswers, Token, runtime_directory, serve_stored};

/// A bundle that is served on this machine.
pub(crate) struct ServedBundle {
    /// URL of the server.
    pub(crate) server: String,
    /// File with the token. It is deleted when this value is dropped.
    pub(crate) token_file: PathBuf,
    /// Time at which the bundle was collected.
    pub(crate) taken: String,
    /// Future that serves the bundle while it is polled. It ends only if serving fails.
    pub(crate) serving: BoxFuture<'static, io::Result<()>>,
    _folder: TempDir,
}

/// Opens a bundle and serves it on a port of the loopback interface, to clients with a token
/// generated for it.
///
/// # Errors
/// If the file is not a bundle, or no port or temporary folder is available.
pub(crate) async fn serve_bundle(file: &Path) -> Result<ServedBundle, CommandFailure> {
    let bundle = SupportBundle::read(file).map_err(|error| {
        let text = format!("{} can't be opened: {error}", file.display());
        let absent = !file.exists();
        let failure =
            if absent { CommandFailure::usage(text) } else { CommandFailure::failed(text) };
        failure.next("name a file that 'strait support-bundle' has written")
    })?;
    let here = |error: io::Error| {
        CommandFailure::failed(format!("the bundle can't be served on this machine: {error}"))
    };
    let folder = runtime_directory().map_err(here)?;
    let (token, token_file) = Token::read_or_make(folder.path())
        .map_err(|error| CommandFailure::failed(error.to_string()))?;
    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(here)?;
    let server = format!("http://{}", listener.local_addr().map_err(here)?);
    let taken = bundle.contents.taken.clone();
    let serving = serve_stored(listener, answers(bundle), token).boxed();
    Ok(ServedBundle { server, token_file, taken, serving, _folder: folder })
}

/// Converts a bundle into stored responses.
fn answers(mut bundle: SupportBundle) -> StoredAnswers {
    let taken = bundle.contents.taken.parse::<Timestamp>();
    let taken = taken.map_or(SystemTime::UNIX_EPOCH, SystemTime::from);
    let mut by_path: BTreeMap<String, Vec<StoredAnswer>> = BTreeMap::new();
    for file in bundle.contents.files {
        let Some(body) = bundle.files.remove(&file.file) else { continue };
        let answer = StoredAnswer { query: file.query, status: file.status, kind: file.kind, body };
        by_path.entry(file.path).or_default().push(answer);
    }
    let proxies = by_path.get("/debug/proxies").and_then(|all| all.first());
    let proxies =
        proxies.and_then(|answer| serde_json::from_slice::<Vec<Proxy>>(&answer.body).ok());
    let proxies = proxies.map(|rows| names(&rows)).unwrap_or_default();
    StoredAnswers { taken, by_path, proxies }
}

/// Maps each name under which a proxy can be requested to the key of the proxy's newest stream.
fn names(rows: &[Proxy]) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    for row in rows {
        let (name, key) = (proxy::name(row), &row.key);
        names.insert(format!("{name}@{}", text(&row.cluster)), key.clone());
        names.insert(name, key.clone());
        names.insert(text(&row.id), key.clone());
    }
    names
}

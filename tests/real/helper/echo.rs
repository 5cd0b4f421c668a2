//! The application in each pod: it reports its name and cluster, and the data that it received.
//! Port 9000 answers one line per connection. Port 8080 speaks HTTP/1.1, takes a second for paths
//! that begin with /slow, and fails for /down/CLUSTER in that cluster and for /down/CLUSTER/POD in
//! that pod. It opens a WebSocket on request, answers in it, and closes it. Ends with its namespace.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::wait;

/// The HTTP port.
pub(crate) const HTTP_PORT: u16 = 8080;
/// The port that answers one line of text with one line of JSON.
pub(crate) const TCP_PORT: u16 = 9000;

pub(super) fn serve(name: &str, cluster: &str) -> Result<Value, String> {
    let identity = json!({ "pod": name, "cluster": cluster });
    let listen = |port| {
        TcpListener::bind(("0.0.0.0", port)).map_err(|error| format!("port {port}: {error}"))
    };
    let (http, tcp) = (listen(HTTP_PORT)?, listen(TCP_PORT)?);
    println!("listening");
    std::thread::scope(|scope| {
        scope.spawn(|| accept(&http, &identity, answer_requests));
        accept(&tcp, &identity, answer_line);
    });
    Ok(Value::Null)
}

fn accept(
    listener: &TcpListener,
    identity: &Value,
    answer: fn(TcpStream, &Value) -> std::io::Result<()>,
) {
    std::thread::scope(|scope| {
        for stream in listener.incoming().flatten() {
            // A client that closes early is ignored.
            scope.spawn(move || answer(stream, identity).ok());
        }
    });
}

fn answer_line(mut stream: TcpStream, identity: &Value) -> std::io::Result<()> {
    BufReader::new(&stream).read_line(&mut String::new())?;
    stream.write_all(format!("{identity}\n").as_bytes())
}

fn answer_requests(mut stream: TcpStream, identity: &Value) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
        let mut headers = Map::new();
        loop {
            line.clear();
            reader.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.insert(name.to_ascii_lowercase(), value.trim().into());
        }
        let websocket = headers.get("upgrade").is_some_and(|upgrade| *upgrade == "websocket");
        if path.starts_with("/slow") {
            wait::pause(Duration::from_secs(1));
        }
        let mut answer = identity.clone();
        answer["path"] = path.as_str().into();
        answer["headers"] = headers.into();
        let body = answer.to_string();
        if websocket {
            let head = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
            return stream.write_all(format!("{head}{body}\n").as_bytes());
        }
        let length = body.len();
        let fails = path.split('?').next().and_then(|path| path.strip_prefix("/down/"));
        let fails = fails.is_some_and(|down| match down.split_once('/') {
            Some((cluster, pod)) => identity["cluster"] == cluster && identity["pod"] == pod,
            None => identity["cluster"] == down,
        });
        let status = if fails { "503 Service Unavailable" } else { "200 OK" };
        let answer = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(answer.as_bytes())?;
    }
}

//! The minimum cost of a control plane on this machine: writing an assignment to each of many
//! loopback sockets, and reading a response from each. There is no TLS, no HTTP/2, and nothing to
//! decide.
//!
//! `floor [CONNECTIONS [BYTES [ROUNDS]]]` prints microseconds of CPU per exchange, for the side
//! that writes assignments and for the side that responds, each on one thread. It is the reference
//! for the cost of a delivery in `benches/run`.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// The approximate size of an acknowledgement with its frame and record, in bytes.
const ANSWER_BYTES: usize = 150;

fn main() -> ExitCode {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<usize>());
    let mut next = |default| numbers.next().unwrap_or(Ok(default));
    let (Ok(connections), Ok(bytes), Ok(rounds)) = (next(1000), next(3500), next(50)) else {
        eprintln!("floor [CONNECTIONS [BYTES [ROUNDS]]]: numbers");
        return ExitCode::from(64);
    };
    match exchange(connections, bytes, rounds) {
        Ok((server, client)) => {
            let per = |cpu: Duration| cpu.as_secs_f64() * 1e6 / (connections * rounds) as f64;
            println!("server {:.1} us, client {:.1} us", per(server), per(client));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("floor: {connections} connections: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the CPU time of both sides.
fn exchange(connections: usize, bytes: usize, rounds: usize) -> io::Result<(Duration, Duration)> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let client = std::thread::spawn(move || {
        on_one_thread(async move {
            let mut tasks = tokio::task::JoinSet::new();
            for _ in 0..connections {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                tasks.spawn(answer(stream, bytes, rounds));
            }
            all(tasks).await
        })
    });
    let server = on_one_thread(async move {
        let listener = TcpListener::from_std(listener)?;
        let (mut streams, mut tasks) = (Vec::new(), tokio::task::JoinSet::new());
        let (done, mut is_done) = mpsc::channel::<()>(connections);
        for _ in 0..connections {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let (go, goes) = mpsc::channel(1);
            streams.push(go);
            tasks.spawn(tell(stream, goes, done.clone(), bytes));
        }
        for _ in 0..rounds {
            for go in &streams {
                let _ = go.send(()).await;
            }
            for _ in 0..connections {
                is_done.recv().await;
            }
        }
        drop(streams);
        all(tasks).await
    })?;
    let client = client.join().map_err(|_| io::Error::other("the client panicked"))??;
    Ok((server, client))
}

/// Runs `work` on this thread and returns its CPU time.
fn on_one_thread(work: impl Future<Output = io::Result<()>>) -> io::Result<Duration> {
    let clock = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
    };
    let began = clock();
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)?;
    Ok(clock() - began)
}

async fn all(mut tasks: tokio::task::JoinSet<io::Result<()>>) -> io::Result<()> {
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(io::Error::other)??;
    }
    Ok(())
}

/// A stream of the server: on each wake-up it writes, and reads a response.
async fn tell(
    mut stream: TcpStream,
    mut woken: mpsc::Receiver<()>,
    done: mpsc::Sender<()>,
    bytes: usize,
) -> io::Result<()> {
    let message = vec![7; bytes];
    while woken.recv().await.is_some() {
        stream.write_all(&message).await?;
        stream.read_exact(&mut [0; ANSWER_BYTES]).await?;
        let _ = done.send(()).await;
    }
    Ok(())
}

async fn answer(mut stream: TcpStream, bytes: usize, rounds: usize) -> io::Result<()> {
    let mut message = vec![0; bytes];
    for _ in 0..rounds {
        stream.read_exact(&mut message).await?;
        stream.write_all(&[7; ANSWER_BYTES]).await?;
    }
    Ok(())
}

//! An agent with its files, on a dedicated loopback address, so that it can use the ports of a pod.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// The time limit for everything that a test waits for.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// Waits until `test` returns a value.
pub(crate) fn until<T>(what: &str, mut test: impl FnMut() -> Result<T, String>) -> T {
    let began = Instant::now();
    loop {
        match test() {
            Ok(found) => return found,
            Err(fact) if began.elapsed() > LIMIT => panic!("{what}: not within {LIMIT:?}: {fact}"),
            Err(_) => std::thread::park_timeout(Duration::from_millis(20)),
        }
    }
}

/// The mounted files of a pod, and its address.
pub(crate) struct Pod {
    folder: TempDir,
    pub(crate) ip: Ipv4Addr,
    /// Addresses of control planes, in order of preference.
    pub(crate) discovery: Vec<SocketAddr>,
    /// Further arguments of `run`.
    pub(crate) arguments: Vec<String>,
    pub(crate) environment: Vec<(&'static str, String)>,
}

impl Pod {
    /// Creates a pod with the token `token-1` and these roots.
    pub(crate) fn new(roots: &str, discovery: &[SocketAddr]) -> Self {
        static NEXT: AtomicU8 = AtomicU8::new(1);
        // Tests in other processes use other addresses.
        let [.., high, low] = std::process::id().to_be_bytes();
        let ip = Ipv4Addr::new(127, 1 + high % 254, low, NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = tempfile::Builder::new()
            .prefix("agent-")
            .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
            .expect("a folder");
        let pod = Self {
            folder,
            ip,
            discovery: discovery.to_vec(),
            arguments: vec!["--allow-key-on-disk".to_owned()],
            environment: Vec::new(),
        };
        pod.write("token", "token-1\n");
        pod.write("roots.pem", roots);
        pod
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        let new = self.path(&format!("{name}.new"));
        fs::write(&new, text).expect("written");
        fs::rename(new, self.path(name)).expect("renamed");
    }

    /// Reads a file in the folder that Envoy reads.
    pub(crate) fn secret(&self, name: &str) -> Result<String, String> {
        fs::read_to_string(self.path("strait").join(name))
            .map_err(|error| format!("{name}: {error}"))
    }

    pub(crate) fn port(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.ip.into(), port)
    }

    /// Returns the command line of the agent, for this command line of Envoy.
    pub(crate) fn command(&self, envoy: &[&str]) -> Vec<String> {
        let discovery: Vec<_> = self.discovery.iter().map(SocketAddr::to_string).collect();
        let mut line = vec![env!("CARGO_BIN_EXE_strait-agent").to_owned(), "run".to_owned()];
        let mut flag = |name: &str, value: String| line.extend([format!("--{name}"), value]);
        flag("discovery", discovery.join(","));
        flag("cluster", "east".to_owned());
        flag("name", "web-0".to_owned());
        flag("namespace", "shop".to_owned());
        flag("service-account", "web".to_owned());
        flag("ip", self.ip.to_string());
        flag("token-file", self.path("token").display().to_string());
        flag("roots-file", self.path("roots.pem").display().to_string());
        flag("dir", self.path("strait").display().to_string());
        for (name, port) in
            [("admin", 15000), ("agent", 15020), ("health", 15021), ("metrics", 15090)]
        {
            flag(&format!("{name}-address"), self.port(port).to_string());
        }
        line.extend(self.arguments.clone());
        line.push("--".to_owned());
        line.extend(envoy.iter().map(|&word| word.to_owned()));
        line
    }

    /// Starts the agent.
    pub(crate) fn start(&self, envoy: &[&str]) -> Agent {
        let line = self.command(envoy);
        let mut command = Command::new(&line[0]);
        command.args(&line[1..]);
        self.start_command(command)
    }

    /// Starts the agent with another command.
    pub(crate) fn start_command(&self, mut command: Command) -> Agent {
        let log = fs::File::create(self.path("log")).expect("a log");
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stderr(log.try_clone().expect("a log")).stdout(log).stdin(Stdio::null());
        Agent { child: command.spawn().expect("it starts"), log: self.path("log") }
    }

    /// Returns the command line of an Envoy that only records its start.
    pub(crate) fn idle_envoy(&self) -> [String; 2] {
        let script = format!("echo $$ >> {}; exec sleep 1000\n", self.path("starts").display());
        self.write("idle-envoy", &script);
        ["sh".to_owned(), self.path("idle-envoy").display().to_string()]
    }

    /// Returns the process IDs of the Envoys that were started so far.
    pub(crate) fn starts(&self) -> Vec<i32> {
        let text = fs::read_to_string(self.path("starts")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }
}

/// A running agent, killed with SIGKILL on drop.
pub(crate) struct Agent {
    child: Child,
    log: PathBuf,
}

impl Agent {
    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a process ID")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal);
    }

    /// Returns the agent's log.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until the agent exits.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        let log = self.log.clone();
        until("the agent ends", || match self.child.try_wait().expect("a child") {
            Some(status) => Ok(status),
            None => Err(fs::read_to_string(&log).unwrap_or_default()),
        })
    }

    /// Waits until the agent exits, and returns its exit code.
    pub(crate) fn exit_code(&mut self) -> Option<i32> {
        let status = self.ended();
        assert_eq!(status.signal(), None, "{}", self.log());
        status.code()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the agent's log: {}", self.log());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn kill(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).expect("a process ID"), signal).expect("it is there");
}

/// Returns whether a process runs and is not a zombie.
pub(crate) fn runs(pid: i32) -> bool {
    let stat = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    stat.is_ok_and(|text| !text.contains(") Z "))
}

/// Sends an HTTP/1.1 request and returns status and body. The body ends with the connection.
pub(crate) fn http(address: SocketAddr, request: &str) -> Result<(u16, String), String> {
    let text = |error: std::io::Error| error.to_string();
    let mut stream = TcpStream::connect(address).map_err(text)?;
    stream.set_read_timeout(Some(LIMIT)).map_err(text)?;
    write!(stream, "{request} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").map_err(text)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(text)?;
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
    status.zip(body).ok_or(answer)
}

/// A server that answers each request as a test defines and records the requests: an admin interface or an
/// application.
pub(crate) struct Answers {
    requests: Arc<Mutex<Vec<String>>>,
}

impl Answers {
    /// Starts a server. `answer` returns the complete HTTP response to the header of a request.
    pub(crate) fn serve(
        address: SocketAddr,
        answer: impl Fn(&str) -> String + Send + 'static,
    ) -> Self {
        let listener =
            TcpListener::bind(address).unwrap_or_else(|error| panic!("{address}: {error}"));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a connection");
                let mut head = Vec::new();
                let mut byte = [0];
                while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|n| n == 1) {
                    head.push(byte[0]);
                }
                let head = String::from_utf8_lossy(&head).into_owned();
                let text = answer(&head);
                kept.lock().expect("not poisoned").push(head);
                // The client may have disconnected.
                let _ = stream.write_all(text.as_bytes());
            }
        });
        Self { requests }
    }

    /// Returns the first lines of all requests so far.
    pub(crate) fn requests(&self) -> Vec<String> {
        let requests = self.requests.lock().expect("not poisoned");
        requests.iter().filter_map(|head| Some(head.lines().next()?.to_owned())).collect()
    }

    /// Returns the header of the last request.
    pub(crate) fn last(&self) -> String {
        self.requests.lock().expect("not poisoned").last().cloned().unwrap_or_default()
    }
}

/// Returns a response with this body.
pub(crate) fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
}

/// Returns the responses of the admin interface of a fully configured Envoy.
pub(crate) fn admin(head: &str) -> String {
    let path = head.split(' ').nth(1).unwrap_or_default();
    match path.split('?').next().unwrap_or_default() {
        "/ready" => ok("LIVE\n"),
        "/stats/prometheus" => ok("# TYPE envoy_x counter\nenvoy_x{} 1\n"),
        "/stats" => {
            ok("cluster_manager.cds.update_success: 1\nlistener_manager.lds.update_success: 1\n")
        }
        _ => ok(""),
    }
}

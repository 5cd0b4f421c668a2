//! Redirection in a network namespace, tested with connections of real programs. Needs root; otherwise the tests are
//! skipped with a message.

use std::process::{Child, Command, Output, Stdio};

use crate::harness::until;

/// A server that answers each connection with the port it arrived at.
const SERVER: &str = "
import selectors, socket, sys
waiting = selectors.DefaultSelector()
for port in sys.argv[1:]:
    listener = socket.create_server(('::', int(port)), family=socket.AF_INET6, dualstack_ipv6=True)
    waiting.register(listener, selectors.EVENT_READ, port)
print('listening', flush=True)
while True:
    for key, _ in waiting.select():
        stream, _ = key.fileobj.accept()
        stream.sendall(key.data.encode())
        stream.close()
";

/// A client that connects as a user, from a given or any address, and prints the response.
const CLIENT: &str = "
import encodings.idna, os, socket, sys
user, source, host, port = sys.argv[1:]
os.setgid(int(user)); os.setuid(int(user))
try:
    stream = socket.create_connection((host, int(port)), 0.5, (source, 0) if source else None)
    print(stream.recv(100).decode())
except OSError:
    print('nobody')
";

/// A pod's network: the loopback, one interface, and another host behind it. Removed on drop.
struct PodNetwork {
    pod: String,
    other: String,
    server: Option<Child>,
}

impl PodNetwork {
    fn create(label: &str) -> Option<Self> {
        let [pod, other] = ["pod", "other"]
            .map(|part| format!("strait-agent-{}-{label}-{part}", std::process::id()));
        if !run("ip", &["netns", "add", &pod]).status.success() {
            crate::real::skip("redirection: network namespaces can't be made here");
            return None;
        }
        let network = Self { pod, other, server: None };
        let lines = [
            format!("netns add {}", network.other),
            format!(
                "-n {} link add eth0 type veth peer name eth0 netns {}",
                network.pod, network.other
            ),
            format!("-n {} addr add 10.0.0.5/24 dev eth0", network.pod),
            format!("-n {} addr add 10.0.0.6/24 dev eth0", network.other),
            format!("-n {} addr add fd00::5/64 dev eth0 nodad", network.pod),
            format!("-n {} addr add fd00::6/64 dev eth0 nodad", network.other),
            format!("-n {} link set eth0 up", network.pod),
            format!("-n {} link set eth0 up", network.other),
            format!("-n {} link set lo up", network.pod),
            format!("-n {} route add default via 10.0.0.6", network.pod),
            format!("-n {} route add default via fd00::6", network.pod),
        ];
        for line in lines {
            let output = run("ip", &line.split(' ').collect::<Vec<_>>());
            assert!(
                output.status.success(),
                "ip {line}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Some(network)
    }

    fn inside(namespace: &str, words: &[&str]) -> Output {
        run("ip", &[&["netns", "exec", namespace], words].concat())
    }

    fn serve(&mut self, ports: &[&str]) {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.pod, "python3", "-c", SERVER]).args(ports);
        let mut server = command.stdout(Stdio::piped()).spawn().expect("python3");
        let mut line = String::new();
        let stdout = server.stdout.take().expect("a pipe");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line)
            .expect("it speaks");
        self.server = Some(server);
    }

    /// Returns the port that answers a user of the pod.
    fn reaches(&self, user: &str, source: &str, host: &str, port: &str) -> String {
        let output = Self::inside(&self.pod, &["python3", "-c", CLIENT, user, source, host, port]);
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Returns the port that answers another host.
    fn reached(&self, port: &str) -> String {
        self.reached_at("10.0.0.5", port)
    }

    fn reached_at(&self, address: &str, port: &str) -> String {
        let output = Self::inside(&self.other, &["python3", "-c", CLIENT, "0", "", address, port]);
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    fn redirect(&self, flags: &[&str]) -> (Option<i32>, String) {
        let output = Self::inside(
            &self.pod,
            &[&[env!("CARGO_BIN_EXE_strait-agent"), "redirect"], flags].concat(),
        );
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    }

    fn rules(&self) -> String {
        let output = Self::inside(&self.pod, &["iptables-save"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().filter(|line| line.starts_with("-A")).map(|line| format!("{line}\n")).collect()
    }
}

impl Drop for PodNetwork {
    fn drop(&mut self) {
        if let Some(server) = &mut self.server {
            let _ = server.kill();
            let _ = server.wait();
        }
        for namespace in [&self.pod, &self.other] {
            run("ip", &["netns", "delete", namespace]);
        }
    }
}

fn run(program: &str, words: &[&str]) -> Output {
    Command::new(program).args(words).output().unwrap_or_else(|error| panic!("{program}: {error}"))
}

/// The programs that can set rules.
const TOOLS: [&str; 2] = ["iptables", "nft"];

#[test]
fn traffic_is_redirected_except_that_of_envoy() {
    for tool in TOOLS {
        let Some(mut network) = PodNetwork::create(&format!("all-{tool}")) else { return };
        network.serve(&["8080", "15001", "15006", "15020", "15021"]);
        let (code, said) = network.redirect(&["--tool", tool]);
        assert_eq!(code, Some(0), "{said}");
        assert!(!said.contains("warning"), "{said}");
        until("the interface is up", || match &*network.reached("15021") {
            "15021" => Ok(()),
            answer => Err(answer.to_owned()),
        });
        let (app, envoy) = ("1000", "1337");
        // For each family: addresses of the pod, of another host, the source of Envoy's connections to the application,
        // and the loopback.
        for [own, other, inbound, loopback] in [
            ["10.0.0.5", "10.9.9.9", "127.0.0.6", "127.0.0.1"],
            ["fd00::5", "fd99::9", "::6", "::1"],
        ] {
            let sent = network.reaches(app, "", other, "80");
            assert_eq!(sent, "15001", "outbound connections of the application, by {tool}");
            let sent = network.reaches(envoy, "", other, "80");
            assert_eq!(sent, "nobody", "connections of Envoy leave the pod, by {tool}");
            assert_eq!(network.reached_at(own, "8080"), "15006", "inbound connections, by {tool}");
            assert_eq!(network.reached_at(own, "15020"), "15020", "the agent's own port");
            let itself = network.reaches(envoy, "", own, "8080");
            assert_eq!(itself, "15006", "a service that the pod itself serves, by {tool}");
            assert_eq!(
                network.reaches(app, "", own, "8080"),
                "8080",
                "the application calls itself"
            );
            let application = network.reaches(envoy, inbound, own, "8080");
            assert_eq!(application, "8080", "Envoy reaches the application at {own}, by {tool}");
            assert_eq!(network.reaches(app, "", loopback, "8080"), "8080", "by {tool}");
        }
    }
}

#[test]
fn try_detects_redirection_by_any_component_without_privileges() {
    let Some(network) = PodNetwork::create("try") else { return };
    let tries = |user: &str, ip: &str| {
        let agent = env!("CARGO_BIN_EXE_strait-agent");
        let (user, group) = (format!("--reuid={user}"), format!("--regid={user}"));
        let as_user = ["setpriv", &user, &group, "--clear-groups", "--bounding-set=-all"];
        let words = [&as_user[..], &[agent, "redirect", "--try", "--ip", ip]].concat();
        let output = PodNetwork::inside(&network.pod, &words);
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    };
    let both = "10.0.0.5,fd00::5";
    let (code, said) = tries("1337", both);
    assert_eq!(code, Some(126), "{said}");
    assert!(said.contains("STR0912") && said.contains("10.0.0.5"), "{said}");

    // As Istio's plugin sets them, but only for IPv4.
    let rules = "*nat\n:ISTIO_OUTPUT - [0:0]\n:ISTIO_IN_REDIRECT - [0:0]\n\
        -A OUTPUT -p tcp -j ISTIO_OUTPUT\n\
        -A ISTIO_OUTPUT -s 127.0.0.6/32 -o lo -j RETURN\n\
        -A ISTIO_OUTPUT ! -d 127.0.0.1/32 -o lo -p tcp ! --dport 15008 -m owner --uid-owner 1337 -j ISTIO_IN_REDIRECT\n\
        -A ISTIO_IN_REDIRECT -p tcp -j REDIRECT --to-ports 15006\nCOMMIT\n";
    let file = std::env::temp_dir().join(format!("strait-agent-{}-rules", std::process::id()));
    std::fs::write(&file, rules).expect("written");
    let restored =
        PodNetwork::inside(&network.pod, &["iptables-restore", file.to_str().expect("a path")]);
    std::fs::remove_file(&file).expect("it is there");
    assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
    assert_eq!(
        tries("1337", "10.0.0.5"),
        (Some(0), "10.0.0.5: connections are redirected\n".into())
    );
    let (code, said) = tries("1337", both);
    assert!(code == Some(126) && said.contains("fd00::5"), "{said}");
    // The rules do not apply to other users.
    assert_eq!(tries("1000", "10.0.0.5").0, Some(126));

    // Our rules are sufficient too, whatever they exclude.
    let narrow = ["--include-inbound-ports", "9000", "--include-outbound-ranges", "10.8.0.0/16"];
    assert_eq!(network.redirect(&narrow).0, Some(0));
    let (code, said) = tries("1337", both);
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn excluded_ports_and_ranges_are_not_redirected() {
    for tool in TOOLS {
        let Some(mut network) = PodNetwork::create(&format!("some-{tool}")) else { return };
        network.serve(&["8080", "9000", "15001", "15006", "15021"]);
        let flags = ["--exclude-inbound-ports", "9000", "--exclude-outbound-ranges", "10.9.0.0/16"];
        let more = ["--include-outbound-ranges", "10.8.0.0/16", "--include-outbound-ports", "443"];
        let (code, said) = network.redirect(&[&flags[..], &more, &["--tool", tool]].concat());
        assert_eq!(code, Some(0), "{said}");
        until("the interface is up", || match &*network.reached("15021") {
            "15021" => Ok(()),
            answer => Err(answer.to_owned()),
        });
        assert_eq!(network.reached("9000"), "9000");
        assert_eq!(network.reached("8080"), "15006");
        assert_eq!(network.reaches("1000", "", "10.8.1.1", "80"), "15001");
        assert_eq!(network.reaches("1000", "", "10.7.1.1", "443"), "15001");
        assert_eq!(network.reaches("1000", "", "10.7.1.1", "80"), "nobody");
        assert_eq!(network.reaches("1000", "", "10.9.1.1", "443"), "nobody");
    }
}

#[test]
fn second_run_with_nft_restores_only_missing_rules() {
    let Some(network) = PodNetwork::create("nft") else { return };
    let nft = |words: &[&str]| {
        let output = PodNetwork::inside(&network.pod, &[&["nft"], words].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    nft(&["add", "table", "ip", "others"]);
    let others = nft(&["list", "ruleset"]);
    // With every kind of setting.
    let flags = [
        ["--tool", "nft"],
        ["--exclude-inbound-ports", "9000"],
        ["--include-outbound-ranges", "10.8.0.0/16,10.7.7.7,fd08::/16"],
        ["--exclude-outbound-ranges", "10.8.9.0/24,fd08:9::/32"],
        ["--include-outbound-ports", "443"],
        ["--exclude-outbound-ports", "5432"],
        ["--exclude-interfaces", "eth7,tun+"],
    ]
    .concat();
    let all = [&flags[..], &["--dns"]].concat();
    let check = [&all[..], &["--check"]].concat();
    let (code, said) = network.redirect(&check);
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("missing: nft ip: MESH_OUT: ip daddr 127.0.0.1 return")
            && said.contains("missing: nft ip6: nat_output: type nat hook output priority -100"),
        "{said}"
    );
    assert_eq!(nft(&["list", "ruleset"]), others, "a check changes nothing");

    let (code, said) = network.redirect(&all);
    assert_eq!(code, Some(0), "{said}");
    let rules = nft(&["list", "ruleset"]);
    assert!(rules.contains(&others), "rules of other programs stay: {rules}");
    let (code, said) = network.redirect(&all);
    assert_eq!((code, nft(&["list", "ruleset"])), (Some(0), rules.clone()));
    assert!(said.contains("nothing to do"), "{said}");
    assert_eq!(network.redirect(&check).0, Some(0));

    nft(&["flush", "chain", "ip", "strait", "nat_output"]);
    let (code, said) = network.redirect(&check);
    assert!(code == Some(2) && said.contains("nat_output: meta l4proto 6 jump MESH_OUT"), "{said}");
    nft(&["delete", "table", "ip6", "strait"]);
    assert_eq!(network.redirect(&all).0, Some(0));
    assert_eq!(nft(&["list", "ruleset"]).len(), rules.len());
    assert_eq!(network.redirect(&check).0, Some(0));

    // Other settings replace the previous ones.
    assert_eq!(network.redirect(&flags).0, Some(0));
    assert_eq!(network.redirect(&check).0, Some(2));
}

#[test]
fn second_run_restores_only_missing_rules() {
    let Some(network) = PodNetwork::create("twice") else { return };
    let (code, said) = network.redirect(&["--check"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("missing: iptables-save: nat: -A MESH_OUT -d 127.0.0.1/32 -j RETURN"),
        "{said}"
    );
    assert_eq!(network.rules(), "", "a check changes nothing");

    assert_eq!(network.redirect(&[]).0, Some(0));
    let rules = network.rules();
    let (code, said) = network.redirect(&[]);
    assert_eq!((code, network.rules()), (Some(0), rules.clone()));
    assert!(said.contains("nothing to do"), "{said}");
    assert_eq!(network.redirect(&["--check"]).0, Some(0));

    let delete = ["iptables", "-t", "nat", "-D", "OUTPUT", "-p", "tcp", "-j", "MESH_OUT"];
    assert!(PodNetwork::inside(&network.pod, &delete).status.success());
    let (code, said) = network.redirect(&["--check"]);
    assert!(code == Some(2) && said.contains("-A OUTPUT -p tcp -j MESH_OUT"), "{said}");
    assert_eq!(network.redirect(&[]).0, Some(0));
    assert_eq!(network.rules(), rules);

    // Other settings replace the previous ones, whatever was set before.
    assert_eq!(network.redirect(&["--exclude-inbound-ports", "9000"]).0, Some(0));
    assert_eq!(network.redirect(&["--check"]).0, Some(2));
    assert_eq!(network.redirect(&[]).0, Some(0));
    assert_eq!(network.rules(), rules);
}

#[test]
fn invalid_port_is_reported() {
    let output = run(
        env!("CARGO_BIN_EXE_strait-agent"),
        &["redirect", "--check", "--exclude-inbound-ports", "http"],
    );
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{said}");
    assert!(said.contains("STR0950") && said.contains("\"http\""), "{said}");
}

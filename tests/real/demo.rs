//! `strait demo --once` with an Envoy on the PATH: the only part of the demo that needs one.

use std::process::Command;

use crate::host::Host;

pub(crate) fn real_requests(host: &Host) {
    let folder = host.envoy.parent().expect("a program is in a folder");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(folder.to_owned()).chain(std::env::split_paths(&path));
    let output = Command::new(env!("CARGO_BIN_EXE_strait"))
        .args(["demo", "--once"])
        .env("PATH", std::env::join_paths(folders).expect("paths without colons"))
        .output()
        .expect("the program starts");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}\n{}", String::from_utf8_lossy(&output.stderr));
    for line in [
        "200 requests from client.shop in east",
        "through 172.30.0.21",
        "The pods saw the client as spiffe://cluster.local/ns/shop/sa/client",
        "real requests reached both networks",
    ] {
        assert!(printed.contains(line), "{line:?} is not in\n{printed}");
    }
}

//! The client side of SOCKS 5 (RFC 1928), with a user name and password (RFC 1929). The proxy
//! resolves names.

use std::net::IpAddr;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::Redacted;

const VERSION: u8 = 5;
/// Authentication methods.
const NO_AUTHENTICATION: u8 = 0;
const USER_AND_PASSWORD: u8 = 2;
const NONE_ACCEPTABLE: u8 = 0xff;
/// The version of the exchange of a user name and password.
const PASSWORD_VERSION: u8 = 1;
const CONNECT: u8 = 1;
/// Types of addresses.
const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;
/// Maximum length of a name, a user name and a password in bytes: the length is one byte.
const TEXT_BYTES_MAX: usize = 255;

/// A user name and password.
pub(super) struct SocksUser {
    pub(super) name: String,
    pub(super) password: Redacted<String>,
}

/// Requests a connection to a host and port over a new connection to a proxy.
///
/// # Errors
/// Returns the response of the proxy.
pub(super) async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    (host, port): (&str, u16),
    user: Option<&SocksUser>,
) -> Result<(), String> {
    let interrupted = |error: std::io::Error| format!("is interrupted: {error}");
    let methods: &[u8] = match user {
        None => &[VERSION, 1, NO_AUTHENTICATION],
        Some(_) => &[VERSION, 2, NO_AUTHENTICATION, USER_AND_PASSWORD],
    };
    send(stream, methods).await.map_err(interrupted)?;
    let chosen: [u8; 2] = receive(stream).await.map_err(interrupted)?;
    match (chosen, user) {
        ([VERSION, NO_AUTHENTICATION], _) => {}
        ([VERSION, USER_AND_PASSWORD], Some(user)) => {
            let mut message = vec![PASSWORD_VERSION];
            for text in [&user.name, user.password.reveal()] {
                push_text(&mut message, text, "user name or password")?;
            }
            send(stream, &message).await.map_err(interrupted)?;
            let [_, status]: [u8; 2] = receive(stream).await.map_err(interrupted)?;
            if status != 0 {
                return Err("does not accept the user name and password".to_owned());
            }
        }
        ([VERSION, NONE_ACCEPTABLE | USER_AND_PASSWORD], None) => {
            return Err("requires a user name and password; set authorizationFile".to_owned());
        }
        ([VERSION, _], _) => return Err("accepts no known method of authentication".to_owned()),
        _ => return Err("sends no response of SOCKS 5".to_owned()),
    }
    let mut message = vec![VERSION, CONNECT, 0];
    match host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) => {
            message.push(IPV4);
            message.extend(address.octets());
        }
        Ok(IpAddr::V6(address)) => {
            message.push(IPV6);
            message.extend(address.octets());
        }
        Err(_) => {
            message.push(NAME);
            push_text(&mut message, host, "host name")?;
        }
    }
    message.extend(port.to_be_bytes());
    send(stream, &message).await.map_err(interrupted)?;
    let [version, reply, _, kind]: [u8; 4] = receive(stream).await.map_err(interrupted)?;
    if version != VERSION {
        return Err("sends no response of SOCKS 5".to_owned());
    }
    if reply != 0 {
        let text = reply_text(reply);
        return Err(format!("refuses a connection to {host}:{port}: SOCKS reply {reply} ({text})"));
    }
    // The address from which the proxy connects has no use.
    let length = match kind {
        IPV4 => 4,
        IPV6 => 16,
        NAME => usize::from(stream.read_u8().await.map_err(interrupted)?),
        _ => return Err("sends no response of SOCKS 5".to_owned()),
    };
    let mut address = vec![0; length + size_of::<u16>()];
    stream.read_exact(&mut address).await.map_err(interrupted)?;
    Ok(())
}

async fn send<S: AsyncWrite + Unpin>(stream: &mut S, message: &[u8]) -> std::io::Result<()> {
    stream.write_all(message).await?;
    stream.flush().await
}

async fn receive<const N: usize, S: AsyncRead + Unpin>(stream: &mut S) -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

/// Adds a text with its length.
fn push_text(message: &mut Vec<u8>, text: &str, what: &str) -> Result<(), String> {
    match u8::try_from(text.len()) {
        Ok(length) if length > 0 => {
            message.push(length);
            message.extend_from_slice(text.as_bytes());
            Ok(())
        }
        _ => Err(format!("cannot be used: the {what} is not 1 to {TEXT_BYTES_MAX} bytes long")),
    }
}

/// Returns the meaning of a reply (RFC 1928, section 6).
fn reply_text(reply: u8) -> &'static str {
    match reply {
        1 => "general failure",
        2 => "not allowed by its rules",
        3 => "network unreachable",
        4 => "host unreachable",
        5 => "connection refused",
        6 => "time to live expired",
        7 => "command not supported",
        8 => "type of address not supported",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs an exchange with a proxy that sends these bytes. Returns the result and the bytes that it
    /// received.
    async fn exchange(
        host: &str,
        user: Option<(&str, &str)>,
        responses: &[u8],
    ) -> (Result<(), String>, Vec<u8>) {
        let (mut client, mut server) = tokio::io::duplex(2048);
        server.write_all(responses).await.expect("written");
        let user = user.map(|(name, password)| SocksUser {
            name: name.to_owned(),
            password: Redacted::new(password.to_owned()),
        });
        // The proxy sends nothing more.
        let (mut received, sends) = tokio::io::split(server);
        drop(sends);
        let reading = async {
            let mut bytes = Vec::new();
            received.read_to_end(&mut bytes).await.expect("read");
            bytes
        };
        let connecting = async {
            let limit = std::time::Duration::from_millis(200);
            let connected = connect(&mut client, (host, 6443), user.as_ref());
            let result = tokio::time::timeout(limit, connected).await;
            drop(client);
            result.unwrap_or_else(|_| Err("waits".to_owned()))
        };
        tokio::join!(connecting, reading)
    }

    const GRANTED: [u8; 10] = [5, 0, 0, 1, 0, 0, 0, 0, 0, 0];

    #[tokio::test]
    async fn name_is_sent_to_the_proxy_and_addresses_in_their_form() {
        let port = 6443_u16.to_be_bytes();
        let responses = [&[5, 0][..], &GRANTED].concat();
        for (host, address) in [
            ("api.test", [&[3, 8][..], b"api.test"].concat()),
            ("10.8.0.1", vec![1, 10, 8, 0, 1]),
            ("[fd00::1]", [&[4, 0xfd][..], &[0; 14], &[1]].concat()),
        ] {
            let (result, sent) = exchange(host, None, &responses).await;
            assert_eq!(result, Ok(()), "{host}");
            assert_eq!(sent, [&[5, 1, 0, 5, 1, 0][..], &address, &port].concat(), "{host}");
        }
        // An answer may contain a name.
        let with_name = [&[5, 0, 5, 0, 0, 3, 1][..], b"a", &[0, 0]].concat();
        assert_eq!(exchange("api.test", None, &with_name).await.0, Ok(()));
    }

    #[tokio::test]
    async fn user_is_sent_only_if_the_proxy_selects_that_method() {
        let user = Some(("me", "secret"));
        let responses = [&[5, 2, 1, 0][..], &GRANTED].concat();
        let (result, sent) = exchange("a", user, &responses).await;
        assert_eq!(result, Ok(()));
        assert_eq!(sent[..4], [5, 2, 0, 2]);
        assert_eq!(sent[4..14], [&[1, 2][..], b"me", &[6], b"secre"].concat());
        let (result, sent) = exchange("a", user, &[&[5, 0][..], &GRANTED].concat()).await;
        assert_eq!(result, Ok(()));
        assert!(!sent.windows(6).any(|part| part == b"secret"));
    }

    #[tokio::test]
    async fn refusal_contains_the_reply_and_never_the_password() {
        let long = "a".repeat(256);
        for (host, user, responses, fact) in [
            ("a", None, &[5, 0, 5, 2, 0, 1][..], "a:6443: SOCKS reply 2 (not allowed"),
            ("a", None, &[5, 0, 5, 99, 0, 1], "SOCKS reply 99 (unknown)"),
            ("a", None, &[5, 0xff], "set authorizationFile"),
            ("a", None, &[5, 2], "set authorizationFile"),
            ("a", Some(("me", "secret")), &[5, 0xff], "no known method"),
            ("a", Some(("me", "secret")), &[5, 1], "no known method"),
            ("a", Some(("me", "secret")), &[5, 2, 1, 1], "does not accept the user name"),
            ("a", Some(("me", "")), &[5, 2], "is not 1 to 255 bytes"),
            (&long, None, &[5, 0], "host name is not 1 to 255 bytes"),
            ("a", None, b"HTTP/1.1 400 Bad\r\n\r\n", "no response of SOCKS 5"),
            ("a", None, &[5, 0, 5, 0, 0, 9, 1, 1], "no response of SOCKS 5"),
            ("a", None, &[5, 0, 4, 0, 0, 1], "no response of SOCKS 5"),
        ] {
            let error = exchange(host, user, responses).await.0.expect_err(fact);
            assert!(error.contains(fact) && !error.contains("secret"), "{error}");
        }
    }
}

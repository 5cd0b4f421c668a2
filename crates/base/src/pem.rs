//! Parses PEM like Go's clients: the content of a private key determines its type; the label of the
//! block does not.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use rustls_pki_types::PrivateKeyDer;

/// Returns the parts of a text. Each part starts with a block.
pub fn blocks(pem: &[u8]) -> impl Iterator<Item = &[u8]> {
    const BEGIN: &[u8] = b"-----BEGIN ";
    let find = |text: &[u8]| text.windows(BEGIN.len()).position(|window| window == BEGIN);
    let mut rest = find(pem).and_then(|at| pem.get(at..));
    std::iter::from_fn(move || {
        let text = rest?;
        let next = text.get(1..).and_then(find).map(|at| at + 1);
        rest = next.and_then(|at| text.get(at..));
        text.get(..next.unwrap_or(text.len()))
    })
}

/// Returns the label of a block.
pub fn label(block: &[u8]) -> Option<&[u8]> {
    let text = block.strip_prefix(b"-----BEGIN ")?;
    let end = text.windows(5).position(|window| window == b"-----")?;
    text.get(..end)
}

/// Returns the DER content of the first private key in a text.
///
/// # Errors
/// Returns an error if there is no such block, or if it is encrypted or not base64.
pub fn private_key(pem: &[u8]) -> Result<Vec<u8>, &'static str> {
    let is_key = |block: &&[u8]| label(block).is_some_and(|label| label.ends_with(b"PRIVATE KEY"));
    let block = blocks(pem).find(is_key).ok_or("holds no private key in PEM")?;
    if block.windows(9).any(|window| window == b"ENCRYPTED") {
        return Err("holds an encrypted private key");
    }
    let lines = block.split(|byte| *byte == b'\n').skip(1);
    let body = lines.take_while(|line| !line.starts_with(b"-----")).flatten().copied();
    let body: Vec<u8> = body.filter(|byte| !byte.is_ascii_whitespace()).collect();
    BASE64.decode(body).map_err(|_| "holds a private key that is not base64")
}

/// Encodes a block with this label and a single line of content.
pub fn encode(label: &str, der: &[u8]) -> String {
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", BASE64.encode(der))
}

/// Encodes a private key with the label that matches its type.
pub fn encode_key(key: &PrivateKeyDer<'_>) -> String {
    let label = match key {
        PrivateKeyDer::Pkcs1(_) => "RSA PRIVATE KEY",
        PrivateKeyDer::Sec1(_) => "EC PRIVATE KEY",
        _ => "PRIVATE KEY",
    };
    encode(label, key.secret_der())
}

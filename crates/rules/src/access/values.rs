//! Parsers of single values of rules. Each returns the parsed value or the reason why it is
//! invalid.

use ipnet::IpNet;

use super::request_test::RequestTest;
use strait_model::Namespace;

/// Parses a principal.
pub(super) fn principal(text: &str) -> Result<RequestTest, String> {
    if text.starts_with("spiffe://") {
        return Err(format!("{text:?}: principals are written without spiffe://"));
    }
    Ok(RequestTest::Principal(text.into()))
}

/// Parses a service account. The namespace defaults to `own`.
pub(super) fn account(text: &str, own: &Namespace) -> Result<RequestTest, String> {
    if text.contains('*') {
        return Err(format!("{text:?} contains a wildcard"));
    }
    let (namespace, name) = text.split_once('/').unwrap_or((own.as_str(), text));
    if namespace.is_empty() || name.is_empty() || name.contains('/') {
        return Err(format!("{text:?} is neither ACCOUNT nor NAMESPACE/ACCOUNT"));
    }
    Ok(RequestTest::ServiceAccount([namespace.into(), name.into()].into()))
}

/// Parses a trust domain. `*` may be first, last or alone.
pub(super) fn trust_domain(text: &str) -> Result<RequestTest, String> {
    let inner = text.strip_prefix('*').unwrap_or(text);
    let inner =
        if inner.len() == text.len() { text.strip_suffix('*').unwrap_or(text) } else { inner };
    if text.contains('/') || inner.contains('*') {
        return Err(format!("{text:?} is not a trust domain; * may be first, last or alone"));
    }
    Ok(RequestTest::TrustDomain(text.into()))
}

/// Parses an address or a CIDR range.
pub(super) fn range(text: &str) -> Result<IpNet, String> {
    let address = || text.parse::<std::net::IpAddr>().map(IpNet::from);
    let range = text.parse::<IpNet>().map(|range| range.trunc());
    let range = range
        .or_else(|_| address())
        .map_err(|_| format!("{text:?} is neither an address nor a range of addresses"))?;
    Ok(unmap_range(range))
}

/// Converts a mapped IPv6 range (`::ffff:192.0.2.1`) to IPv4, because proxies see such addresses as
/// IPv4.
fn unmap_range(range: IpNet) -> IpNet {
    const MAPPED_BITS: u8 = 96;
    let IpNet::V6(mapped) = range else { return range };
    let length = mapped.prefix_len().checked_sub(MAPPED_BITS);
    let unmapped = mapped.addr().to_ipv4_mapped().zip(length);
    unmapped
        .and_then(|(address, length)| ipnet::Ipv4Net::new(address, length).ok())
        .map_or(range, IpNet::V4)
}

/// Parses a port of a workload.
pub(super) fn port(text: &str) -> Result<RequestTest, String> {
    let port =
        text.parse::<u16>().map_err(|_| format!("{text:?} is not a port from 0 to 65535"))?;
    Ok(RequestTest::Port(port))
}

/// Characters that a template may contain in addition to letters and digits. Envoy crashes on other
/// characters, and on an empty segment.
const TEMPLATE_SIGNS: &str = "!$%&'()+,-.:;=@_~";
/// Maximum length in bytes of a template. Envoy rejects the whole listener for a longer one.
const TEMPLATE_BYTES_MAX: usize = 256;

/// Parses a path or a path template. `{*}` matches one segment, `{**}` any number. `{**}` must be
/// the last operator; text may follow it (Istio's path templates; Envoy's `uri_template` match).
pub(super) fn path(text: &str) -> Result<RequestTest, String> {
    if !text.contains(['{', '}']) {
        return Ok(RequestTest::Path(text.into()));
    }
    if !text.starts_with('/') {
        return Err(format!("{text:?} is a template that does not begin with /"));
    }
    let segments: Vec<_> = text.split('/').skip(1).collect();
    let mut template = String::new();
    let mut has_rest = false;
    for (at, segment) in segments.iter().enumerate() {
        let last = at + 1 == segments.len();
        let written = match *segment {
            "{*}" | "{**}" if has_rest => {
                return Err(format!("{text:?}: only text may follow {{**}}"));
            }
            "{*}" => "*",
            "{**}" => {
                has_rest = true;
                "**"
            }
            literal if literal.contains(['{', '}', '*']) => {
                return Err(format!(
                    "{text:?}: {{*}} and {{**}} match whole segments, and a template contains no \
                     other *"
                ));
            }
            "" if !last => return Err(format!("{text:?}: a template has no empty segments")),
            literal => literal,
        };
        let is_literal = |one: char| one.is_ascii_alphanumeric() || TEMPLATE_SIGNS.contains(one);
        if let Some(other) = segment.chars().find(|one| !"{*}".contains(*one) && !is_literal(*one))
        {
            return Err(format!("{text:?}: a template cannot contain {other:?}; write it as %XX"));
        }
        template.push('/');
        template.push_str(written);
    }
    if template.len() > TEMPLATE_BYTES_MAX {
        return Err(format!(
            "a template has at most {TEMPLATE_BYTES_MAX} bytes, but this one has {}",
            template.len()
        ));
    }
    Ok(RequestTest::PathTemplate(template.into()))
}

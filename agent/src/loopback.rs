//! The address of the pod's loopback from which Envoy reaches the workload by IPv6. All of 127.0.0.0/8 is there by itself;
//! of IPv6 one address is, so this one is added, by a message to the kernel: no program has to be in the image for it.

use std::io;
use std::net::Ipv6Addr;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

/// What Envoy's inbound connections come from (`::6`, as 127.0.0.6 is of IPv4).
const INBOUND_SOURCE: Ipv6Addr = Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 6);
/// The loopback is the first interface of each network namespace.
const LOOPBACK: u32 = 1;

// rtnetlink(7), netlink(7).
const RTM_NEWADDR: u16 = 20;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_CREATE: u16 = 0x400;
const NLMSG_ERROR: u16 = 2;
const AF_INET6: u8 = 10;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;

/// Adds the address where it is not there yet.
///
/// # Errors
/// What the kernel says: without NET_ADMIN that it is not permitted.
pub(crate) fn add_inbound_source() -> io::Result<()> {
    // NETLINK_ROUTE is 0, which is what none is.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    send(&socket, &message(), SendFlags::empty())?;
    let mut answer = [0; 1024];
    let (length, _) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
    match error_number(answer.get(..length).unwrap_or_default()) {
        Some(0) => Ok(()),
        Some(error) if error == -Errno::EXIST.raw_os_error() => Ok(()),
        Some(error) => Err(io::Error::from_raw_os_error(-error)),
        None => Err(io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer is no answer")),
    }
}

fn message() -> Vec<u8> {
    let mut body = vec![AF_INET6, 128, 0, 0];
    body.extend(LOOPBACK.to_ne_bytes());
    for kind in [IFA_LOCAL, IFA_ADDRESS] {
        body.extend(20_u16.to_ne_bytes());
        body.extend(kind.to_ne_bytes());
        body.extend(INBOUND_SOURCE.octets());
    }
    let length = u32::try_from(16 + body.len()).unwrap_or(u32::MAX);
    let mut message = Vec::from(length.to_ne_bytes());
    message.extend(RTM_NEWADDR.to_ne_bytes());
    message.extend((NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE).to_ne_bytes());
    // Sequence and sender: there is one message, to the kernel.
    message.extend([0; 8]);
    message.extend(body);
    message
}

/// The error number of an answer, negative; 0 where it was done.
fn error_number(answer: &[u8]) -> Option<i32> {
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    let error = i32::from_ne_bytes(answer.get(16..20)?.try_into().ok()?);
    (kind == NLMSG_ERROR).then_some(error)
}

//! The IPv6 loopback address from which Envoy connects to the workload. In IPv4, all of 127.0.0.0/8 exists by default.
//! In IPv6, only ::1 exists, so this address is added by a message to the kernel. This needs no program in the image.

use std::io;
use std::net::Ipv6Addr;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

/// The source address of Envoy's inbound connections (`::6`, the counterpart of 127.0.0.6).
const INBOUND_SOURCE: Ipv6Addr = Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 6);
/// The loopback is the first interface of each network namespace.
const LOOPBACK: u32 = 1;

// Constants from rtnetlink(7) and netlink(7).
const RTM_NEWADDR: u16 = 20;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_CREATE: u16 = 0x400;
const NLMSG_ERROR: u16 = 2;
const AF_INET6: u8 = 10;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;

/// Adds the address if it does not exist.
///
/// # Errors
/// The error of the kernel. Without NET_ADMIN, the operation is not permitted.
pub(crate) fn add_inbound_source() -> io::Result<()> {
    // The protocol `None` is 0, which is NETLINK_ROUTE.
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
    // Sequence number and sender are 0: there is only one message, to the kernel.
    message.extend([0; 8]);
    message.extend(body);
    message
}

/// Returns the error number of a response: negative, or 0 for success.
fn error_number(answer: &[u8]) -> Option<i32> {
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    let error = i32::from_ne_bytes(answer.get(16..20)?.try_into().ok()?);
    (kind == NLMSG_ERROR).then_some(error)
}

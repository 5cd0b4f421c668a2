//! Fuzz targets of this crate, as `strait_base::testing::fuzz` describes them.

use http::HeaderMap;

use crate::protocol::Http2Protocol;
use crate::rope::Rope;

/// A target and the corpus name.
pub type Target = (&'static str, fn(&[u8]) -> bool);

/// The targets of this crate.
pub const TARGETS: &[Target] = &[("http2", http2), ("hpack", hpack)];

/// Receives bytes in pieces, whose length is the first byte, and responds to the calls in them.
fn http2(bytes: &[u8]) -> bool {
    let Some((first, bytes)) = bytes.split_first() else { return false };
    let mut protocol = Http2Protocol::new();
    let (mut calls, mut called) = (Vec::new(), false);
    for piece in bytes.chunks(usize::from(*first).max(1)) {
        if let Err(reason) = protocol.receive(piece) {
            protocol.fail(reason);
            return called;
        }
        while let Some((request, stream)) = protocol.accept() {
            assert!(request.headers().len() <= bytes.len());
            calls.push(stream);
            called = true;
        }
        assert!(calls.len() <= bytes.len() / 9, "a call takes a frame at least");
        calls.retain(|&stream| {
            let Ok(body) = protocol.take_body(stream) else {
                protocol.drop_call(stream);
                return false;
            };
            let Ok(room) = protocol.room(stream) else { return true };
            let mut message = Rope::default();
            message.put_slice(&[0; 64]);
            let fits = protocol.send_data(stream, &mut message, room.min(64)).is_ok();
            if fits && body.is_none() {
                let _ = protocol.send_headers(stream, None, &HeaderMap::new(), true);
                protocol.drop_call(stream);
                return false;
            }
            true
        });
        // The output is bounded by the input.
        assert!(protocol.output.len() <= (1 << 20) + 64 * bytes.len(), "{}", protocol.output.len());
        let sent = protocol.output.len();
        protocol.output.drop_first(sent);
    }
    called
}

/// Decodes two blocks of headers of one connection. The first byte is the length of the first block.
fn hpack(bytes: &[u8]) -> bool {
    let Some((first, bytes)) = bytes.split_first() else { return false };
    let (one, other) = bytes.split_at(usize::from(*first).min(bytes.len()));
    let mut decoder = crate::hpack::HeaderDecoder::default();
    for block in [one, other] {
        let mut size = 0;
        let read = decoder.decode(block, |(name, value)| size += name.len() + value.len());
        // One byte can refer to an entry of the dynamic table, whose size is bounded.
        assert!(size <= block.len().max(1) * (64 << 10), "{size} of {}", block.len());
        if read.is_err() {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    #[test]
    fn targets_accept_their_corpora_and_mutations() {
        strait_base::testing::fuzz::check_targets(super::TARGETS);
    }
}

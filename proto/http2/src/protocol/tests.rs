use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;

/// Returns a connection whose peer has sent the preface and its settings.
fn begun() -> Http2Protocol {
    let mut protocol = Http2Protocol::new();
    protocol.receive(&[PREFACE, &frame(kind::SETTINGS, 0, 0, &[])].concat()).expect("a greeting");
    protocol.output = Rope::default();
    protocol
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut rope = Rope::default();
    FrameHead::put_frame(kind, flags, stream, payload, &mut rope);
    rope.into_bytes().into()
}

/// `POST /`, as indexes of the static table.
const CALL: &[u8] = &[0x80 | 3, 0x80 | 4, 0x80 | 7];
const WHOLE: u8 = flag::END_HEADERS;

fn call(stream: u32) -> Vec<u8> {
    frame(kind::HEADERS, WHOLE, stream, CALL)
}

/// Returns the frames that wait for the socket: type, flags, stream, payload.
fn sent(protocol: &mut Http2Protocol) -> Vec<(u8, u8, u32, Vec<u8>)> {
    let bytes = std::mem::take(&mut protocol.output).into_bytes();
    let (mut rest, mut frames) = (&*bytes, Vec::new());
    while let Some((head, behind)) = FrameHead::read(rest) {
        let (payload, behind) = behind.split_at(head.length);
        frames.push((head.kind, head.flags, head.stream, payload.to_vec()));
        rest = behind;
    }
    assert!(rest.is_empty());
    frames
}

fn rope(length: usize) -> Rope {
    let mut rope = Rope::default();
    rope.put_shared(&Bytes::from(vec![7; length]));
    rope
}

#[test]
fn call_is_received_and_answered() {
    let mut protocol = begun();
    let mut bytes = call(1);
    bytes.extend(frame(kind::DATA, flag::PADDED, 1, b"\x02helloxx"));
    bytes.extend(frame(kind::DATA, flag::END_STREAM, 1, b" world"));
    protocol.receive(&bytes).expect("sound");
    let (request, stream) = protocol.accept().expect("a call");
    assert_eq!((request.method(), request.uri().path(), stream), (&Method::POST, "/", 1));
    assert_eq!(protocol.take_body(1), Ok(Some(b"hello world".to_vec())));
    assert_eq!(protocol.take_body(1), Ok(None));
    protocol.send_headers(1, Some(200), &HeaderMap::new(), false).expect("open");
    protocol.send_data(1, &mut rope(20_000), 20_000).expect("room");
    protocol.send_headers(1, None, &HeaderMap::new(), true).expect("open");
    protocol.drop_call(1);
    let kinds: Vec<_> =
        sent(&mut protocol).iter().map(|frame| (frame.0, frame.1, frame.3.len())).collect();
    let end = flag::END_STREAM | flag::END_HEADERS;
    let data = (kind::DATA, 0, PAYLOAD_MAX);
    let rest = (kind::DATA, 0, 20_000 - PAYLOAD_MAX);
    assert_eq!(kinds, [(kind::HEADERS, WHOLE, 1), data, rest, (kind::HEADERS, end, 0)]);
    assert!(protocol.calls.is_empty());
}

#[test]
fn result_is_independent_of_the_size_of_received_pieces() {
    let mut bytes = [PREFACE, &frame(kind::SETTINGS, 0, 0, &[]), &call(1)].concat();
    bytes.extend(frame(kind::HEADERS, 0, 3, &CALL[..1]));
    bytes.extend(frame(kind::CONTINUATION, WHOLE, 3, &CALL[1..]));
    bytes.extend(frame(kind::DATA, 0, 3, &[7; 3000]));
    bytes.extend(frame(kind::PING, 0, 0, b"12345678"));
    let said = |size: usize| {
        let mut protocol = Http2Protocol::new();
        bytes.chunks(size).for_each(|piece| protocol.receive(piece).expect("sound"));
        assert!(protocol.rest.is_empty());
        let calls = [protocol.accept(), protocol.accept()];
        let calls = calls.map(|call| call.map(|(_, stream)| stream));
        (calls, protocol.take_body(3), sent(&mut protocol))
    };
    for size in [1, 2, 9, 10, 1000] {
        assert_eq!(said(size), said(usize::MAX), "{size}");
    }
    assert_eq!(said(usize::MAX).0, [Some(1), Some(3)]);
}

#[test]
fn output_stays_within_the_windows_of_the_peer() {
    let mut protocol = begun();
    let window = |size: u32| {
        let setting = [&setting::INITIAL_WINDOW_SIZE.to_be_bytes()[..], &size.to_be_bytes()];
        frame(kind::SETTINGS, 0, 0, &setting.concat())
    };
    protocol.receive(&[window(100), call(1)].concat()).expect("sound");
    assert_eq!(protocol.room(1), Ok(100));
    protocol.send_data(1, &mut rope(100), 100).expect("room");
    assert_eq!(protocol.room(1), Ok(0));
    protocol.receive(&frame(kind::WINDOW_UPDATE, 0, 1, &50_u32.to_be_bytes())).expect("sound");
    assert_eq!(protocol.room(1), Ok(50));
    // A window may become negative. Updates must make it positive again.
    protocol.receive(&window(0)).expect("sound");
    assert_eq!(protocol.room(1), Ok(0));
    protocol.receive(&window(1 << 30)).expect("sound");
    protocol.output = Rope::default();
    // Now the window of the connection, or the room in the output, is the limit.
    assert_eq!(protocol.room(1), Ok(OUTPUT_MAX));
    protocol.send_data(1, &mut rope(OUTPUT_MAX), OUTPUT_MAX).expect("room");
    assert_eq!((protocol.room(1), protocol.is_full()), (Ok(0), true));
    protocol.output = Rope::default();
    let left = FIRST_WINDOW as usize - 100 - OUTPUT_MAX;
    assert_eq!(protocol.room(1), Ok(left));
}

#[test]
fn unauthenticated_peer_may_send_64_kib() {
    let data = frame(kind::DATA, 0, 1, &[0; PAYLOAD_MAX]);
    for known in [false, true] {
        let mut protocol = Http2Protocol::narrow();
        let greeting = [PREFACE, &frame(kind::SETTINGS, 0, 0, &[]), &call(1)].concat();
        protocol.receive(&greeting).expect("a greeting and a call");
        // One byte less than four maximum-size frames.
        for _ in 0..3 {
            protocol.receive(&data).expect("room");
        }
        protocol.output = Rope::default();
        if known {
            protocol.widen();
            protocol.widen();
            let more = (WINDOW - FIRST_WINDOW).to_be_bytes().to_vec();
            assert_eq!(sent(&mut protocol), [(kind::WINDOW_UPDATE, 0, 0, more)]);
        }
        assert_eq!(protocol.receive(&data).is_ok(), known);
    }
}

#[test]
fn window_grows_only_when_data_is_read() {
    let mut protocol = begun();
    protocol.receive(&call(1)).expect("sound");
    let data = frame(kind::DATA, 0, 1, &[0; PAYLOAD_MAX]);
    let frames = CALL_WINDOW as usize / PAYLOAD_MAX;
    for _ in 0..frames / 2 {
        protocol.receive(&data).expect("room");
    }
    assert!(sent(&mut protocol).is_empty());
    assert_eq!(protocol.take_body(1).map(|body| body.map(|body| body.len())), Ok(Some(128 << 10)));
    assert_eq!(
        sent(&mut protocol),
        [(kind::WINDOW_UPDATE, 0, 1, (128_u32 << 10).to_be_bytes().to_vec())]
    );
    for _ in 0..frames {
        protocol.receive(&data).expect("room");
    }
    assert_eq!(protocol.receive(&data), Err(ErrorCode::FlowControl));
}

#[test]
fn data_of_ended_calls_is_returned_to_the_window() {
    let mut protocol = begun();
    protocol.receive(&call(1)).expect("sound");
    protocol.drop_call(1);
    for _ in 0..10 * WINDOW as usize / PAYLOAD_MAX {
        protocol.receive(&frame(kind::DATA, 0, 1, &[0; PAYLOAD_MAX])).expect("room");
    }
    assert_eq!(protocol.take_body(1), Err(CallOver));
}

#[test]
fn dropped_call_is_reset_with_the_matching_code() {
    let reason = |reason: ErrorCode| Some((reason as u32).to_be_bytes().to_vec());
    for (is_received, is_sent, expected) in [
        (false, false, reason(ErrorCode::Cancel)),
        (true, false, reason(ErrorCode::Cancel)),
        (false, true, reason(ErrorCode::None)),
        (true, true, None),
    ] {
        let mut protocol = begun();
        let flags = if is_received { WHOLE | flag::END_STREAM } else { WHOLE };
        protocol.receive(&frame(kind::HEADERS, flags, 1, CALL)).expect("sound");
        if is_sent {
            protocol.send_headers(1, Some(200), &HeaderMap::new(), true).expect("open");
        }
        protocol.output = Rope::default();
        protocol.drop_call(1);
        let payloads: Vec<_> = sent(&mut protocol).into_iter().map(|frame| frame.3).collect();
        let case = format!("received {is_received}, sent {is_sent}");
        assert_eq!(payloads, Vec::from_iter(expected), "{case}");
    }
}

#[test]
fn calls_above_the_limit_or_while_closing_are_refused() {
    let mut protocol = begun();
    for number in 0..CALLS_MAX {
        protocol.receive(&call(2 * number + 1)).expect("sound");
    }
    let refused = |protocol: &mut Http2Protocol, stream: u32| {
        protocol.output = Rope::default();
        protocol.receive(&call(stream)).expect("sound");
        let refused = (ErrorCode::Refused as u32).to_be_bytes().to_vec();
        assert_eq!(sent(protocol), [(kind::RST_STREAM, 0, stream, refused)]);
    };
    refused(&mut protocol, 101);
    protocol.drop_call(1);
    protocol.receive(&call(103)).expect("sound");
    assert_eq!(protocol.calls.len(), CALLS_MAX as usize);
    protocol.drop_call(3);
    protocol.leave();
    refused(&mut protocol, 105);
    assert!(!protocol.is_over());
    (0..200).for_each(|stream| protocol.drop_call(stream));
    assert!(protocol.is_over());
}

#[test]
fn protocol_violations_end_the_connection() {
    let settings = |number: u16, value: u32| {
        let payload = [&number.to_be_bytes()[..], &value.to_be_bytes()].concat();
        frame(kind::SETTINGS, 0, 0, &payload)
    };
    let update = |stream, more: u32| frame(kind::WINDOW_UPDATE, 0, stream, &more.to_be_bytes());
    let too_long = [&[0, 0x40, 1, kind::DATA, 0, 0, 0, 0, 1][..], &[0; 10]].concat();
    let pieces = (0..=PIECES_MAX).flat_map(|_| frame(kind::CONTINUATION, 0, 3, &[]));
    let endless = [frame(kind::HEADERS, 0, 3, CALL), pieces.collect()].concat();
    let large =
        [frame(kind::HEADERS, 0, 3, CALL), frame(kind::CONTINUATION, 0, 3, &[0; BLOCK_MAX])];
    let twice = [frame(kind::DATA, flag::END_STREAM, 1, b""), frame(kind::DATA, 0, 1, b"x")];
    let trailers = frame(kind::HEADERS, WHOLE, 1, &[]);
    for (bytes, reason) in [
        (too_long, ErrorCode::FrameSize),
        (frame(kind::DATA, 0, 0, b"x"), ErrorCode::Protocol),
        (frame(kind::DATA, 0, 3, b"x"), ErrorCode::Protocol),
        (frame(kind::DATA, flag::PADDED, 1, b"\x05x"), ErrorCode::Protocol),
        (frame(kind::DATA, flag::PADDED, 1, b""), ErrorCode::FrameSize),
        (twice.concat(), ErrorCode::Protocol),
        (trailers, ErrorCode::Protocol),
        (frame(kind::HEADERS, WHOLE, 2, CALL), ErrorCode::Protocol),
        (frame(kind::HEADERS, WHOLE, 0, CALL), ErrorCode::Protocol),
        (frame(kind::HEADERS, WHOLE | flag::PRIORITY, 3, &[0; 4]), ErrorCode::FrameSize),
        (frame(kind::HEADERS, WHOLE, 3, &[0x80]), ErrorCode::Compression),
        (endless, ErrorCode::Calm),
        (large.concat(), ErrorCode::Calm),
        ([frame(kind::HEADERS, 0, 3, CALL), call(5)].concat(), ErrorCode::Protocol),
        (
            [frame(kind::HEADERS, 0, 3, CALL), frame(kind::CONTINUATION, 0, 5, b"")].concat(),
            ErrorCode::Protocol,
        ),
        (frame(kind::CONTINUATION, WHOLE, 1, b""), ErrorCode::Protocol),
        (frame(kind::RST_STREAM, 0, 3, &[0; 4]), ErrorCode::Protocol),
        (frame(kind::RST_STREAM, 0, 1, &[0; 3]), ErrorCode::FrameSize),
        (frame(kind::SETTINGS, 0, 1, &[]), ErrorCode::Protocol),
        (frame(kind::SETTINGS, 0, 0, &[0; 5]), ErrorCode::FrameSize),
        (frame(kind::SETTINGS, flag::ACK, 0, &[0; 6]), ErrorCode::FrameSize),
        (settings(setting::INITIAL_WINDOW_SIZE, 1 << 31), ErrorCode::FlowControl),
        (
            [update(1, i32::MAX as u32 - 0xffff), settings(setting::INITIAL_WINDOW_SIZE, 0x1_0000)]
                .concat(),
            ErrorCode::FlowControl,
        ),
        (update(0, 0), ErrorCode::Protocol),
        (update(0, i32::MAX as u32), ErrorCode::FlowControl),
        (update(1, i32::MAX as u32), ErrorCode::FlowControl),
        (update(3, 1), ErrorCode::Protocol),
        (frame(kind::PING, 0, 0, &[0; 7]), ErrorCode::FrameSize),
        (frame(kind::PING, 0, 1, &[0; 8]), ErrorCode::Protocol),
        (frame(kind::PUSH_PROMISE, WHOLE, 1, &[0; 8]), ErrorCode::Protocol),
        (frame(kind::GOAWAY, 0, 1, &[0; 8]), ErrorCode::Protocol),
    ] {
        let mut protocol = begun();
        protocol.receive(&call(1)).expect("sound");
        assert_eq!(protocol.receive(&bytes), Err(reason), "{bytes:?}");
    }
    for first in [&b"GET / HTTP/1.1\r\n\r\n......"[..], &[PREFACE, &call(1)].concat()] {
        assert_eq!(Http2Protocol::new().receive(first), Err(ErrorCode::Protocol));
    }
}

#[test]
fn useless_actions_are_limited() {
    let hang_up = |stream| [call(stream), frame(kind::RST_STREAM, 0, stream, &[0; 4])].concat();
    let malformed = |stream| frame(kind::HEADERS, WHOLE, stream, &CALL[..1]);
    let empty = |_| frame(kind::DATA, 0, 1, &[]);
    let floods: [&dyn Fn(u32) -> Vec<u8>; 3] = [&hang_up, &malformed, &empty];
    for (number, flood) in floods.iter().enumerate() {
        let mut protocol = begun();
        protocol.receive(&call(1)).expect("sound");
        let ended = (1..2 * STRIKES_MAX).position(|count| {
            let ended = protocol.receive(&flood(2 * count + 1));
            while let Some((_, stream)) = protocol.accept().filter(|call| call.1 > 1) {
                protocol.drop_call(stream);
            }
            ended == Err(ErrorCode::Calm)
        });
        assert_eq!(ended, Some(STRIKES_MAX as usize), "{number}");
    }
}

#[test]
fn oversized_headers_end_only_their_call() {
    let long = [&[0x00, 1, b'a', 0x7f, 0x81, 0x3f][..], &[b'x'; 8192]].concat();
    let mut protocol = begun();
    protocol.receive(&frame(kind::HEADERS, WHOLE, 1, &[CALL, &long].concat())).expect("sound");
    let calm = (ErrorCode::Calm as u32).to_be_bytes().to_vec();
    assert_eq!(sent(&mut protocol), [(kind::RST_STREAM, 0, 1, calm)]);
    protocol.receive(&call(3)).expect("sound");
    assert_eq!(protocol.accept().map(|call| call.1), Some(3));
}

#[test]
fn idle_connection_keeps_no_buffers() {
    let mut protocol = begun();
    let acknowledged = frame(kind::SETTINGS, flag::ACK, 0, &[]);
    let bytes = [call(1), acknowledged, frame(kind::DATA, 0, 1, &[0; 1000])].concat();
    let (begin, end) = bytes.split_at(bytes.len() - 500);
    protocol.receive(begin).expect("sound");
    protocol.receive(end).expect("sound");
    while protocol.accept().is_some() {}
    protocol.take_body(1).expect("a body");
    protocol.send_data(1, &mut rope(1000), 1000).expect("room");
    protocol.output.drop_first(usize::MAX);
    assert_eq!((protocol.rest.capacity(), protocol.opened.capacity()), (0, 0));
    assert_eq!(protocol.calls[0].inbox.capacity(), 0);
}

#[test]
fn random_frames_cause_no_panic_and_stay_within_limits() {
    let mut random = StdRng::seed_from_u64(7);
    for _ in 0..2000 {
        let mut protocol = begun();
        for _ in 0..60 {
            let stream = random.random_range(0..8);
            let length = random.random_range(0..40);
            let mut payload: Vec<u8> = (0..length).map(|_| random.random()).collect();
            if random.random_bool(0.5) {
                payload = CALL.to_vec();
            }
            let flags = random.random::<u8>() & 0x2d;
            let bytes = frame(random.random_range(0..11), flags, stream, &payload);
            let cut = random.random_range(0..=bytes.len());
            let (one, other) = bytes.split_at(cut);
            if protocol.receive(one).and_then(|()| protocol.receive(other)).is_err() {
                break;
            }
            match (protocol.accept(), random.random_range(0..4)) {
                (Some((_, stream)), 0) => protocol.drop_call(stream),
                (_, 1) => _ = protocol.take_body(stream),
                (_, 2) => {
                    if let Ok(room @ 1..) = protocol.room(stream) {
                        _ = protocol.send_data(stream, &mut rope(room), room);
                    }
                }
                _ => {}
            }
            assert!(protocol.calls.len() <= CALLS_MAX as usize);
            assert!(protocol.output.len() <= 2 * OUTPUT_MAX);
        }
    }
}

//! The body of a response, over any version of HTTP.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{Reason, RecvStream};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tower::BoxError;

/// The body of a response while it arrives. Trailers are not passed on.
#[derive(Debug)]
pub enum ResponseBody {
    /// From a client of hyper.
    Hyper(Incoming),
    /// From an HTTP/2 connection of this crate.
    Http2(RecvStream),
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut *self {
            Self::Hyper(body) => {
                Pin::new(body).poll_frame(cx).map(|frame| frame.map(|one| one.map_err(Into::into)))
            }
            Self::Http2(stream) => Poll::Ready(match ready!(stream.poll_data(cx)) {
                None => None,
                Some(Ok(bytes)) => {
                    // An error means that the connection has ended, which the next frame reports.
                    drop(stream.flow_control().release_capacity(bytes.len()));
                    Some(Ok(Frame::data(bytes)))
                }
                Some(Err(error)) => match error.reason() {
                    // The server ends a complete response early (RFC 9113, 8.1).
                    Some(Reason::NO_ERROR | Reason::CANCEL) => None,
                    _ => Some(Err(error.into())),
                },
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Hyper(body) => body.is_end_stream(),
            Self::Http2(stream) => stream.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Hyper(body) => body.size_hint(),
            Self::Http2(_) => SizeHint::default(),
        }
    }
}

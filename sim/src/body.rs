//! Response bodies: complete, or streamed from a task through a channel.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::sync::mpsc;

use crate::task;

/// The body of a response.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The complete body, taken once.
    Whole(Option<Bytes>),
    /// Chunks from a task; ends when the sender is dropped.
    Flowing(mpsc::Receiver<Bytes>),
}

impl Answer {
    /// Returns a body that a task fills. The channel holds two chunks. If it is full because the
    /// client reads slowly, the task waits, which costs nothing.
    pub(crate) fn flowing() -> (mpsc::Sender<Bytes>, Answer) {
        let (sender, receiver) = mpsc::channel(2);
        (sender, Answer::Flowing(receiver))
    }

    /// Returns the first half of a body. A streamed body ends in the middle of the first chunk.
    pub(crate) fn cut(self) -> Answer {
        let half = |bytes: Bytes| bytes.slice(..bytes.len() / 2);
        match self {
            Answer::Whole(bytes) => Answer::Whole(bytes.map(half)),
            Answer::Flowing(mut chunks) => {
                let (sender, answer) = Answer::flowing();
                task::spawn(async move {
                    if let Some(chunk) = chunks.recv().await {
                        let _ = sender.send(half(chunk)).await;
                    }
                });
                answer
            }
        }
    }

    /// Limits a body to `bytes_per_second`.
    pub(crate) fn throttled(mut self, bytes_per_second: u64) -> Answer {
        const TICKS_PER_SECOND: u32 = 10;
        let share = usize::try_from(bytes_per_second / u64::from(TICKS_PER_SECOND));
        let share = share.unwrap_or(usize::MAX).max(1);
        let (sender, answer) = Answer::flowing();
        task::spawn(async move {
            loop {
                let frame = tokio::select! {
                    frame = self.frame() => frame,
                    () = sender.closed() => return,
                };
                let Some(Ok(frame)) = frame else { return };
                let Ok(mut chunk) = frame.into_data() else { continue };
                while !chunk.is_empty() {
                    let part = chunk.split_to(share.min(chunk.len()));
                    if sender.send(part).await.is_err() {
                        return;
                    }
                    tokio::time::sleep(Duration::from_secs(1) / TICKS_PER_SECOND).await;
                }
            }
        });
        answer
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Answer::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Answer::Flowing(chunks) => {
                chunks.poll_recv(cx).map(|chunk| chunk.map(|bytes| Ok(Frame::data(bytes))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Answer::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Answer::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Answer::Flowing(_) => SizeHint::default(),
        }
    }
}

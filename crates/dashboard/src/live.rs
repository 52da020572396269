//! Server-Sent Events: an open page gets an overview of the runs whenever one changes.

use crate::overview::overview;
use crate::runs::Table;
use axum::body::Body;
use bytes::Bytes;
use http_body::Frame;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, channel};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{sleep, timeout};

/// Time between two messages at least: a run of a thousand steps a second is drawn four times.
const LEAST_INTERVAL: Duration = Duration::from_millis(250);
/// Silence after which a comment is sent, so that a lost browser is noticed.
const SILENCE: Duration = Duration::from_secs(10);

/// Body with an overview of the table now and after every change. The permit bounds the number of
/// such bodies; it is free again when the browser has gone.
pub fn stream(
    table: Table,
    mut changes: watch::Receiver<u64>,
    permit: OwnedSemaphorePermit,
) -> Body {
    // A slow browser holds up this stream alone: the task waits until there is room.
    let (sender, receiver) = channel(1);
    tokio::spawn(async move {
        let _permit = permit;
        let mut last = String::new();
        loop {
            changes.mark_unchanged();
            let text = overview(&table);
            let message = if text == last {
                Bytes::from_static(b": nothing new\n\n")
            } else {
                Bytes::from(format!("event: runs\ndata: {text}\n\n"))
            };
            last = text;
            if sender.send(message).await.is_err() {
                return;
            }
            sleep(LEAST_INTERVAL).await;
            // The reader has ended, and the server with it.
            if let Ok(Err(_)) = timeout(SILENCE, changes.changed()).await {
                return;
            }
        }
    });
    Body::new(Messages { receiver })
}

/// Messages of a channel as a body.
struct Messages {
    receiver: Receiver<Bytes>,
}

impl http_body::Body for Messages {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.receiver.poll_recv(context).map(|message| message.map(|it| Ok(Frame::data(it))))
    }
}

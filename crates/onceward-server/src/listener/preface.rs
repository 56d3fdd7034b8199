//! A limit for the very first bytes. The server looks at them to tell HTTP/2 from HTTP/1, and has no
//! time limit of its own until it knows: a connection that says nothing would stay for ever.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

/// What a client of HTTP/2 says first (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A stream whose first bytes have to come in time: as many as tell which protocol it speaks.
pub(super) struct PrefaceInTime<S> {
    stream: S,
    /// Until when, and how many bytes of the preface came so far; `None` once it is decided.
    undecided: Option<(Pin<Box<Sleep>>, usize)>,
}

impl<S> PrefaceInTime<S> {
    pub(super) fn new(stream: S, at_most: Duration) -> Self {
        PrefaceInTime { stream, undecided: Some((Box::pin(sleep(at_most)), 0)) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for PrefaceInTime<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(context, buffer);
        let Some((deadline, seen)) = &mut this.undecided else { return read };
        if read.is_pending() {
            return match deadline.as_mut().poll(context) {
                Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
                Poll::Pending => Poll::Pending,
            };
        }
        let new = buffer.filled().get(before..).unwrap_or_default();
        let expected = PREFACE.get(*seen..).unwrap_or_default();
        *seen += new.len();
        if new.is_empty() || !expected.starts_with(new) || *seen == PREFACE.len() {
            this.undecided = None;
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for PrefaceInTime<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, duplex},
        time::Instant,
    };

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_says_nothing_or_only_half_a_preface_ends() {
        for said in [&b""[..], b"P", b"PRI * HTTP/2.0\r\n"] {
            let (mut client, server) = duplex(64);
            client.write_all(said).await.expect("written");
            let begun = Instant::now();
            let mut seen = Vec::new();
            let mut stream = PrefaceInTime::new(server, LIMIT);
            let error = stream.read_to_end(&mut seen).await.expect_err("timed out");
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert_eq!((seen.as_slice(), begun.elapsed()), (said, LIMIT));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_has_said_what_it_speaks_has_no_limit_here() {
        for said in [&b"GET"[..], b"POST /", PREFACE] {
            let (mut client, server) = duplex(64);
            client.write_all(said).await.expect("written");
            let mut stream = PrefaceInTime::new(server, LIMIT);
            let mut first = vec![0; said.len()];
            stream.read_exact(&mut first).await.expect("there");
            tokio::time::sleep(2 * LIMIT).await;
            client.write_all(b"more").await.expect("written");
            let mut more = [0; 4];
            stream.read_exact(&mut more).await.expect("still open");
            assert_eq!(&more, b"more");
        }
    }
}

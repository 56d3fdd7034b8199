//! HTTP/1.1 as bytes on a socket. Written by hand: what is broken on purpose must not be mended by a
//! library.

use std::{
    io::{self, BufRead, Read},
    str::FromStr,
};

/// A request or a response that arrived whole.
pub(super) struct Message {
    /// The first line.
    pub(super) line: String,
    /// The headers, in order, names in lower case.
    pub(super) headers: Vec<(String, String)>,
    /// The body.
    pub(super) body: String,
}

impl Message {
    /// Reads one; `None` when the connection ended before its first byte.
    ///
    /// # Errors
    /// When it breaks off, takes too long, or does not say where it ends.
    pub(super) fn read(from: &mut impl BufRead) -> io::Result<Option<Message>> {
        if from.fill_buf()?.is_empty() {
            return Ok(None);
        }
        let line = read_line(from)?;
        let mut headers = Vec::new();
        loop {
            let header = read_line(from)?;
            if header.is_empty() {
                break;
            }
            let (name, value) = header.split_once(':').ok_or(io::ErrorKind::InvalidData)?;
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut message = Message { line, headers, body: String::new() };
        let body = message.read_body(from)?;
        message.body = String::from_utf8(body).map_err(|_| io::ErrorKind::InvalidData)?;
        Ok(Some(message))
    }

    fn read_body(&self, from: &mut impl BufRead) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        if self.header("transfer-encoding") == Some("chunked") {
            loop {
                let length = usize::from_str_radix(&read_line(from)?, 16);
                let length = length.map_err(|_| io::ErrorKind::InvalidData)?;
                read_exactly(from, length, &mut body)?;
                read_line(from)?;
                if length == 0 {
                    return Ok(body);
                }
            }
        }
        let length: usize = self.number("content-length").ok_or(io::ErrorKind::InvalidData)?;
        read_exactly(from, length, &mut body)?;
        Ok(body)
    }

    /// The first value of a header.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// The first value of a header, as a number.
    pub(super) fn number<T: FromStr>(&self, name: &str) -> Option<T> {
        self.header(name)?.parse().ok()
    }

    /// The status of a response.
    pub(super) fn status(&self) -> Option<u16> {
        self.line.split(' ').nth(1)?.parse().ok()
    }
}

/// The bytes of a message: a first line, header lines, a body.
pub(super) fn bytes(line: &str, headers: &[(String, String)], body: &str) -> Vec<u8> {
    let headers: String =
        headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!("{line}\r\n{headers}\r\n{body}").into_bytes()
}

fn read_line(from: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    from.read_line(&mut line)?;
    match line.strip_suffix("\r\n") {
        Some(whole) => Ok(whole.to_owned()),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn read_exactly(from: &mut impl BufRead, length: usize, into: &mut Vec<u8>) -> io::Result<()> {
    let read = from.by_ref().take(length as u64).read_to_end(into)?;
    if read < length { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> io::Result<Option<Message>> {
        Message::read(&mut text.as_bytes())
    }

    #[test]
    fn a_message_is_read_by_its_length_or_in_chunks() {
        let by_length =
            "HTTP/1.1 201 Created\r\nX-Note: a\r\nX-Note: b\r\nContent-Length: 2\r\n\r\n{}";
        let message = read(by_length).expect("read").expect("a message");
        assert_eq!((message.status(), &*message.body), (Some(201), "{}"));
        assert_eq!(message.headers[1], ("x-note".to_owned(), "b".to_owned()));
        let in_chunks =
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n";
        assert_eq!(read(in_chunks).expect("read").expect("a message").body, "{}");
        assert!(read("").expect("read").is_none());
    }

    #[test]
    fn a_message_that_breaks_off_anywhere_is_not_one() {
        for whole in [
            "HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n",
        ] {
            for end in 1..whole.len() {
                assert!(read(&whole[..end]).is_err(), "{:?}", &whole[..end]);
            }
        }
        assert!(read("HTTP/1.1 200 OK\r\n\r\n").is_err(), "without an end");
    }
}

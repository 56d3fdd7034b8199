use std::{
    io::{self, BufRead, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
};

use super::LONGEST;

/// An answer of the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(given, _)| given == name);
        found.map(|(_, value)| value.as_str())
    }

    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        let of_name = self.headers.iter().filter(|(given, _)| given == name);
        of_name.map(|(_, value)| value.as_str()).collect()
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }

    /// Status and error code, as in `409 idempotency_key_in_progress`; `-` for an answer that is
    /// not a rejection.
    pub(crate) fn summary(&self) -> String {
        let document: serde_json::Value = serde_json::from_slice(&self.body).unwrap_or_default();
        let code = document.get("code").and_then(|code| code.as_str()).unwrap_or("-");
        format!("{} {code}", self.status)
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }
}

/// A connection to a server.
pub(crate) struct Connection(BufReader<TcpStream>);

impl Connection {
    pub(crate) fn open(to: SocketAddr) -> io::Result<Connection> {
        let stream = TcpStream::connect(to)?;
        stream.set_read_timeout(Some(LONGEST))?;
        stream.set_nodelay(true)?;
        Ok(Connection(BufReader::new(stream)))
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.get_mut().write_all(bytes)
    }

    pub(crate) fn read_line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_owned())
    }

    /// What comes until the other side closes the connection.
    pub(crate) fn read_to_end(&mut self, bytes: &mut Vec<u8>) -> io::Result<usize> {
        self.0.read_to_end(bytes)
    }

    /// The status and headers of an answer.
    pub(crate) fn read_head(&mut self) -> io::Result<Answer> {
        let status = self.read_line()?;
        let status = status.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or(io::ErrorKind::InvalidData)?;
        let mut headers = Vec::new();
        loop {
            let line = self.read_line()?;
            let Some((name, value)) = line.split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        Ok(Answer { status, headers, body: Vec::new() })
    }

    /// A whole answer.
    pub(crate) fn read_answer(&mut self) -> io::Result<Answer> {
        let mut answer = self.read_head()?;
        let length = answer.header("content-length").map(|length| length.parse());
        match (length, answer.header("transfer-encoding")) {
            (Some(Ok(length)), _) => {
                answer.body = vec![0; length];
                self.0.read_exact(&mut answer.body)?;
            }
            (_, Some("chunked")) => while self.read_chunk(&mut answer.body)? {},
            _ => {
                self.0.read_to_end(&mut answer.body)?;
            }
        }
        Ok(answer)
    }

    /// A whole answer, of a process that first takes its time to stop.
    pub(crate) fn read_late_answer(&mut self) -> io::Result<Answer> {
        self.0.get_ref().set_read_timeout(Some(LONGEST * 2))?;
        self.read_answer()
    }

    /// One chunk of a chunked body; `false` for the last.
    pub(crate) fn read_chunk(&mut self, body: &mut Vec<u8>) -> io::Result<bool> {
        let length = usize::from_str_radix(&self.read_line()?, 16);
        let length = length.map_err(|_| io::ErrorKind::InvalidData)?;
        let begun = body.len();
        body.resize(begun + length, 0);
        self.0.read_exact(&mut body[begun..])?;
        self.read_line()?;
        Ok(length > 0)
    }
}

/// Sends one request on a connection of its own.
pub(crate) fn send(to: SocketAddr, request: &str) -> io::Result<Answer> {
    let mut connection = Connection::open(to)?;
    connection.write(request.as_bytes())?;
    connection.read_answer()
}

/// POSTs JSON under a key, with more header lines if need be.
pub(crate) fn post(to: SocketAddr, key: &str, body: &str, more: &[&str]) -> Answer {
    let answer = send(to, &request(to, key, body, more));
    answer.expect("an answer")
}

pub(crate) fn request(to: SocketAddr, key: &str, body: &str, more: &[&str]) -> String {
    let more: String = more.iter().map(|line| format!("{line}\r\n")).collect();
    format!(
        "POST /charges HTTP/1.1\r\nHost: {to}\r\nContent-Type: application/json\r\n\
         Idempotency-Key: {key}\r\nContent-Length: {}\r\n{more}\r\n{body}",
        body.len()
    )
}

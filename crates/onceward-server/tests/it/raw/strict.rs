use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::{Arc, Mutex},
};

use crate::support::{Gate, Upstream, response};

/// What a large reply has.
const LARGE: usize = 10_000;

/// An upstream that takes nothing for granted: whatever could be read in two ways is a finding.
pub(super) struct Strict {
    upstream: Upstream,
    book: Arc<Mutex<Book>>,
}

#[derive(Default)]
struct Book {
    /// Request line and key of each request.
    requests: Vec<(String, String)>,
    findings: Vec<String>,
}

impl Strict {
    /// A request whose key begins with `held` is answered when the gate is open, and one whose key begins
    /// with `large` at length.
    pub(super) fn start(gate: Gate) -> Strict {
        let book = Arc::<Mutex<Book>>::default();
        let written = Arc::clone(&book);
        let upstream = Upstream::of_connections(move |_, stream| {
            let mut stream = BufReader::new(stream);
            loop {
                match read(&mut stream) {
                    Ok(Some((line, key))) => {
                        let (held, large) = (key.starts_with("held"), key.starts_with("large"));
                        written.lock().expect("lock").requests.push((line, key));
                        if held {
                            gate.pass();
                        }
                        let body = if large { "x".repeat(LARGE) } else { "done".to_owned() };
                        if stream.get_mut().write_all(&response(200, "", &body)).is_err() {
                            return;
                        }
                    }
                    Ok(None) => return,
                    Err(finding) => return written.lock().expect("lock").findings.push(finding),
                }
            }
        });
        Strict { upstream, book }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.upstream.address
    }

    pub(super) fn requests(&self) -> Vec<(String, String)> {
        self.book.lock().expect("lock").requests.clone()
    }

    /// What was seen and found so far.
    pub(super) fn forget(&self) {
        *self.book.lock().expect("lock") = Book::default();
    }

    pub(super) fn findings(&self) -> Vec<String> {
        self.book.lock().expect("lock").findings.clone()
    }
}

/// One request; none at the end of the connection, also in the middle of a body.
fn read(stream: &mut BufReader<TcpStream>) -> Result<Option<(String, String)>, String> {
    let Some(line) = read_line(stream)? else { return Ok(None) };
    let words: Vec<&str> = line.split(' ').collect();
    if words.len() != 3 || words[2] != "HTTP/1.1" || !words[1].starts_with('/') {
        return Err(format!("request line {line:?}"));
    }
    let (mut length, mut chunked, mut key, mut hosts) = (None, false, String::new(), 0);
    loop {
        let Some(header) = read_line(stream)? else { return Ok(None) };
        if header.is_empty() {
            break;
        }
        let (name, value) = header.split_once(": ").ok_or(format!("header {header:?}"))?;
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if !name.bytes().all(is_token) || value.bytes().any(|byte| byte.is_ascii_control()) {
            return Err(format!("header {header:?}"));
        }
        match name.to_ascii_lowercase().as_str() {
            "content-length" if length.is_none() && value.bytes().all(|b| b.is_ascii_digit()) => {
                length = value.parse::<usize>().ok();
            }
            "transfer-encoding" if !chunked && value == "chunked" => chunked = true,
            "content-length" | "transfer-encoding" => return Err(format!("header {header:?}")),
            "idempotency-key" => key = value.to_owned(),
            "host" => hosts += 1,
            _ => {}
        }
    }
    match (length, chunked) {
        (Some(_), true) => return Err("a length and chunks".to_owned()),
        (_, true) => {
            if !read_chunks(stream)? {
                return Ok(None);
            }
        }
        (length, false) => {
            if stream.read_exact(&mut vec![0; length.unwrap_or(0)]).is_err() {
                return Ok(None);
            }
        }
    }
    if hosts != 1 {
        return Err(format!("{hosts} hosts"));
    }
    Ok(Some((line, key)))
}

fn read_line(stream: &mut BufReader<TcpStream>) -> Result<Option<String>, String> {
    let mut line = Vec::new();
    match stream.read_until(b'\n', &mut line) {
        Ok(0) | Err(_) => return Ok(None),
        Ok(_) if !line.ends_with(b"\n") => return Ok(None),
        Ok(_) => {}
    }
    let line = String::from_utf8(line).map_err(|_| "a line that is not text".to_owned())?;
    match line.strip_suffix("\r\n") {
        Some(line) if !line.contains('\r') => Ok(Some(line.to_owned())),
        _ => Err(format!("line {line:?}")),
    }
}

fn read_chunks(stream: &mut BufReader<TcpStream>) -> Result<bool, String> {
    loop {
        let Some(size) = read_line(stream)? else { return Ok(false) };
        let plain = size.bytes().all(|byte| byte.is_ascii_hexdigit());
        let length = usize::from_str_radix(&size, 16).ok().filter(|_| plain);
        let length = length.ok_or(format!("chunk size {size:?}"))?;
        if stream.read_exact(&mut vec![0; length]).is_err() {
            return Ok(false);
        }
        match read_line(stream)? {
            Some(end) if end.is_empty() => {}
            Some(end) => return Err(format!("after a chunk {end:?}")),
            None => return Ok(false),
        }
        if length == 0 {
            return Ok(true);
        }
    }
}

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU8, Ordering::Relaxed},
    },
    thread,
};

use super::Gate;

/// A request as upstream saw it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// On which connection it came, from 0.
    pub(crate) connection: usize,
    pub(crate) line: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(given, _)| given == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// What upstream does with a request.
pub(crate) enum Act {
    /// Sends these bytes and keeps the connection.
    Send(Vec<u8>),
    /// Sends these bytes and closes the connection; the gate is passed when it is closed.
    SendAndClose(Vec<u8>, Gate),
    /// Sends the first bytes, waits, and sends the others.
    SendLater(Vec<u8>, Gate, Vec<u8>),
}

/// A 200 with this body.
pub(crate) fn ok(body: &str) -> Act {
    Act::Send(response(200, "Content-Type: application/json\r\n", body))
}

/// The bytes of a response.
pub(crate) fn response(status: u16, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status} Status\r\n{headers}Content-Length: {length}\r\n\r\n{body}").into()
}

/// An address that refuses connections until somebody listens there. Nobody else does meanwhile: it is
/// of this call alone, and all others are at 127.0.0.1.
pub(crate) fn nowhere() -> SocketAddr {
    static NUMBER: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    let address = Ipv4Addr::new(127, NUMBER.fetch_add(1, Relaxed), high, low);
    let port = TcpListener::bind((address, 0)).expect("a free port");
    port.local_addr().expect("bound")
}

/// An upstream that does as its script says, and remembers what it saw.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Upstream {
    /// The script gets the number of the request, from 0, and the request.
    pub(crate) fn start(script: impl Fn(usize, &Seen) -> Act + Send + Sync + 'static) -> Upstream {
        Self::on(TcpListener::bind("127.0.0.1:0").expect("a free port"), script)
    }

    pub(crate) fn on(
        listener: TcpListener,
        script: impl Fn(usize, &Seen) -> Act + Send + Sync + 'static,
    ) -> Upstream {
        let seen = Arc::<Mutex<Vec<Seen>>>::default();
        let remember = Arc::clone(&seen);
        Self::raw(listener, seen, move |connection, stream| {
            let mut stream = BufReader::new(stream);
            while let Some(request) = read(connection, &mut stream) {
                let number = {
                    let mut seen = remember.lock().expect("lock");
                    seen.push(request.clone());
                    seen.len() - 1
                };
                if !act(script(number, &request), stream.get_mut()) {
                    return;
                }
            }
        })
    }

    /// One that handles connections itself, and remembers nothing.
    pub(crate) fn of_connections(
        handle: impl Fn(usize, TcpStream) + Send + Sync + 'static,
    ) -> Upstream {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        Self::raw(listener, Arc::default(), handle)
    }

    fn raw(
        listener: TcpListener,
        seen: Arc<Mutex<Vec<Seen>>>,
        handle: impl Fn(usize, TcpStream) + Send + Sync + 'static,
    ) -> Upstream {
        let address = listener.local_addr().expect("bound");
        let handle = Arc::new(handle);
        thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let (Ok(stream), handle) = (stream, Arc::clone(&handle)) else { return };
                thread::spawn(move || handle(number, stream));
            }
        });
        Upstream { address, seen }
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().expect("lock").clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.seen.lock().expect("lock").len()
    }
}

fn read(connection: usize, stream: &mut BufReader<TcpStream>) -> Option<Seen> {
    let mut line = || {
        let mut line = String::new();
        let read = stream.read_line(&mut line);
        read.is_ok_and(|read| read > 0).then(|| line.trim_end().to_owned())
    };
    let request_line = line()?;
    let mut headers = Vec::new();
    while let Some((name, value)) = line()?.split_once(':') {
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let mut seen = Seen { connection, line: request_line, headers, body: Vec::new() };
    let length = seen.header("content-length").map_or(0, |length| length.parse().expect("length"));
    seen.body = vec![0; length];
    stream.read_exact(&mut seen.body).ok()?;
    Some(seen)
}

fn act(act: Act, stream: &mut TcpStream) -> bool {
    match act {
        Act::Send(bytes) => stream.write_all(&bytes).is_ok(),
        Act::SendAndClose(bytes, closed) => {
            let _ = stream.write_all(&bytes);
            let _ = stream.shutdown(std::net::Shutdown::Both);
            closed.open();
            false
        }
        Act::SendLater(first, gate, others) => {
            let _ = stream.write_all(&first);
            gate.pass();
            stream.write_all(&others).is_ok()
        }
    }
}

use std::{
    io::{self, Read, Write},
    net::TcpStream,
};

/// HTTP/2 by hand, for upstreams that do what no library lets them do.
pub(crate) struct Frames<S = TcpStream>(S);

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const GOAWAY: u8 = 7;

pub(crate) const NO_ERROR: u32 = 0;
pub(crate) const INTERNAL_ERROR: u32 = 2;
pub(crate) const REFUSED_STREAM: u32 = 7;
pub(crate) const CANCEL: u32 = 8;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A frame: its type, its flags, its stream and what it holds.
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl<S: Read + Write> Frames<S> {
    /// The side of a server: reads the preface and sends its settings.
    pub(crate) fn serve(mut stream: S) -> io::Result<Self> {
        let mut preface = [0; PREFACE.len()];
        stream.read_exact(&mut preface)?;
        assert_eq!(preface, PREFACE, "HTTP/2 from the start");
        let mut frames = Frames(stream);
        frames.write(SETTINGS, 0, 0, &[])?;
        Ok(frames)
    }

    /// The side of a client.
    pub(crate) fn open(mut stream: S) -> io::Result<Self> {
        stream.write_all(PREFACE)?;
        let mut frames = Frames(stream);
        frames.write(SETTINGS, 0, 0, &[])?;
        Ok(frames)
    }

    /// Only for reading what comes on a connection that somebody else writes.
    pub(crate) fn reading(stream: S) -> Self {
        Frames(stream)
    }

    pub(crate) fn write(
        &mut self,
        kind: u8,
        flags: u8,
        stream: u32,
        payload: &[u8],
    ) -> io::Result<()> {
        self.0.write_all(&frame(kind, flags, stream, payload))
    }

    pub(crate) fn write_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    pub(crate) fn read(&mut self) -> io::Result<Frame> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        let mut payload = vec![0; usize::try_from(length).expect("fits")];
        self.0.read_exact(&mut payload)?;
        Ok(Frame { kind: head[3], flags: head[4], stream, payload })
    }

    /// The stream of the next whole request: until its last frame.
    pub(crate) fn read_request(&mut self) -> io::Result<u32> {
        loop {
            let frame = self.read()?;
            let ends = frame.flags & 1 != 0;
            if ends && matches!(frame.kind, DATA | HEADERS) {
                return Ok(frame.stream);
            }
        }
    }

    pub(crate) fn reset(&mut self, stream: u32, code: u32) -> io::Result<()> {
        self.write(RST_STREAM, 0, stream, &code.to_be_bytes())
    }

    pub(crate) fn go_away(&mut self, last_stream: u32, code: u32) -> io::Result<()> {
        let payload = [last_stream.to_be_bytes(), code.to_be_bytes()].concat();
        self.write(GOAWAY, 0, 0, &payload)
    }

    /// A 200 without a body.
    pub(crate) fn answer(&mut self, stream: u32) -> io::Result<()> {
        // 0x88 is `:status: 200` of the static table; 5 ends the stream and the headers.
        self.write(HEADERS, 5, stream, &[0x88])
    }

    /// The head of a 200 whose body is to come.
    pub(crate) fn begin_answer(&mut self, stream: u32) -> io::Result<()> {
        self.write(HEADERS, 4, stream, &[0x88])
    }
}

impl Frames {
    pub(crate) fn close(&mut self) {
        let _ = self.0.shutdown(std::net::Shutdown::Both);
    }
}

/// The bytes of a frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// The head of `GET /` for a host. Each byte but those of the host stands for a line of the static
/// table (RFC 7541, appendix A).
pub(crate) fn get(scheme: &str, host: &str) -> Vec<u8> {
    let scheme = if scheme == "https" { 0x87 } else { 0x86 };
    let length = u8::try_from(host.len()).expect("a short name");
    [&[0x82, scheme, 0x84, 0x41, length], host.as_bytes()].concat()
}

/// The head of a request with these fields, as they are and in this order: literals that are not
/// indexed, without Huffman's code (RFC 7541, 6.2.2).
pub(crate) fn head(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut head = Vec::new();
    for (name, value) in fields {
        head.push(0);
        for text in [name, value] {
            length(&mut head, text.len());
            head.extend(text.bytes());
        }
    }
    head
}

/// A length in seven bits, and in more bytes if need be (RFC 7541, 5.1).
fn length(head: &mut Vec<u8>, length: usize) {
    let byte = |number: usize| u8::try_from(number).expect("less than 256");
    let Some(mut rest) = length.checked_sub(127) else { return head.push(byte(length)) };
    head.push(127);
    while rest > 127 {
        head.push(byte(rest % 128) | 128);
        rest /= 128;
    }
    head.push(byte(rest));
}

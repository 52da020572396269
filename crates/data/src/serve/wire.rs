//! Messages between worker and data server.
//!
//! Every message starts with a header of 16 bytes: magic, protocol version, kind and body length. A
//! reader states the expected kind and maximum length *before* it reads, which bounds waits and
//! allocations. Numbers are little-endian; strings are a four-byte length and UTF-8.

use std::io::{self, Read, Write};

/// Protocol version; changes with every incompatible change.
const PROTOCOL: u16 = 1;
const MAGIC: [u8; 8] = *b"lkstdata";
const FRONT_BYTES: usize = 16;

/// Maximum length of a string.
pub const MAX_TEXT_BYTES: usize = 16 << 10;

/// Maximum length of a body without tokens.
pub const MAX_SMALL_BYTES: usize = 4 * MAX_TEXT_BYTES;

/// Kind of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// Worker: its nonce.
    Hello = 1,
    /// Server: its nonce.
    Challenge = 2,
    /// Worker: its proof and the terms of its recipe.
    Join = 3,
    /// Server: its proof and the description of the corpus.
    Welcome = 4,
    /// Server: refusal with a reason; the stream ends.
    Refused = 5,
    /// Worker: requests micro-batches of a step.
    Pull = 6,
    /// Server: the requested micro-batches.
    Microbatches = 7,
    /// Worker: requests a validation micro-batch.
    PullValidation = 8,
    /// Server: the validation micro-batch.
    ValidationMicrobatch = 9,
    /// Worker: requests tokenizer.json.
    Tokenizer = 10,
    /// Server: tokenizer.json.
    File = 11,
}

/// Malformed message, with the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed(pub String);

/// Reason why no message arrived.
#[derive(Debug)]
pub enum ReadError {
    /// The stream failed or was closed.
    Stream(io::Error),
    /// The bytes are not a valid message.
    Malformed(Malformed),
    /// The peer refused, with its reason.
    Refused(String),
}

impl std::fmt::Display for ReadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stream(error) => match error.kind() {
                io::ErrorKind::UnexpectedEof => f.write_str("it closed the connection"),
                io::ErrorKind::TimedOut => f.write_str("it did not answer in time"),
                _ => write!(f, "{}", error.to_string().to_lowercase()),
            },
            Self::Malformed(Malformed(why)) | Self::Refused(why) => f.write_str(why),
        }
    }
}

/// Sends a header and a body.
pub fn write(stream: &mut dyn Write, kind: Kind, body: &[u8]) -> io::Result<()> {
    let mut front = [0; FRONT_BYTES];
    front[..8].copy_from_slice(&MAGIC);
    front[8..10].copy_from_slice(&PROTOCOL.to_le_bytes());
    front[10..12].copy_from_slice(&(kind as u16).to_le_bytes());
    let len =
        u32::try_from(body.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    front[12..].copy_from_slice(&len.to_le_bytes());
    stream.write_all(&front)?;
    stream.write_all(body)
}

/// Reads a message of this kind, of at most `max_len` bytes, into `body`.
pub fn read(
    stream: &mut dyn Read,
    kind: Kind,
    max_len: usize,
    body: &mut Vec<u8>,
) -> Result<(), ReadError> {
    let found = read_any(stream, max_len, body)?;
    if found == Kind::Refused as u16 {
        let reason = Reader::new(body).text().unwrap_or_else(|_| "without a reason".to_owned());
        return Err(ReadError::Refused(reason));
    }
    if found != kind as u16 {
        let why = format!("message {found} came where {} was expected", kind as u16);
        return Err(ReadError::Malformed(Malformed(why)));
    }
    Ok(())
}

/// Reads a message of any kind, of at most `max_len` bytes, into `body`; returns its kind.
pub fn read_any(
    stream: &mut dyn Read,
    max_len: usize,
    body: &mut Vec<u8>,
) -> Result<u16, ReadError> {
    let mut front = [0; FRONT_BYTES];
    stream.read_exact(&mut front).map_err(ReadError::Stream)?;
    let (kind, len) = read_front(&front, max_len).map_err(ReadError::Malformed)?;
    body.resize(len, 0);
    stream.read_exact(body).map_err(ReadError::Stream)?;
    Ok(kind)
}

fn read_front(front: &[u8; FRONT_BYTES], max_len: usize) -> Result<(u16, usize), Malformed> {
    let mut front = Reader::new(front);
    if front.array()? != MAGIC {
        return Err(Malformed("these are not the bytes of a lockstep data server".to_owned()));
    }
    let protocol = u16::from_le_bytes(front.array()?);
    if protocol != PROTOCOL {
        return Err(Malformed(format!("it speaks protocol {protocol} and not {PROTOCOL}")));
    }
    let kind = u16::from_le_bytes(front.array()?);
    let len = front.small()? as usize;
    if len > max_len {
        return Err(Malformed(format!("{len} bytes are announced, and {max_len} allowed")));
    }
    Ok((kind, len))
}

/// Body under construction.
#[derive(Debug, Default)]
pub struct Writer {
    /// Bytes written so far.
    pub bytes: Vec<u8>,
}

impl Writer {
    /// Writes eight bytes.
    pub fn number(&mut self, number: u64) {
        self.bytes.extend_from_slice(&number.to_le_bytes());
    }

    /// Writes four bytes.
    pub fn small(&mut self, number: u32) {
        self.bytes.extend_from_slice(&number.to_le_bytes());
    }

    /// Writes a string; one that is too long is truncated.
    pub fn text(&mut self, text: &str) {
        let text = &text[..text.floor_char_boundary(MAX_TEXT_BYTES)];
        self.small(text.len() as u32);
        self.bytes.extend_from_slice(text.as_bytes());
    }

    /// Writes tokens of four bytes each.
    pub fn tokens(&mut self, tokens: &[u32]) {
        self.bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
    }
}

/// Parser of a body.
#[derive(Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Parser at the start of a body.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Reads `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (array, rest) = self.bytes.split_first_chunk().ok_or_else(cut_short)?;
        self.bytes = rest;
        Ok(*array)
    }

    /// Reads eight bytes.
    pub fn number(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Reads four bytes.
    pub fn small(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Reads a string.
    pub fn text(&mut self) -> Result<String, Malformed> {
        let len = self.small()? as usize;
        if len > MAX_TEXT_BYTES {
            return Err(Malformed(format!("a text of {len} bytes, at most {MAX_TEXT_BYTES}")));
        }
        let (text, rest) = self.bytes.split_at_checked(len).ok_or_else(cut_short)?;
        self.bytes = rest;
        let text = std::str::from_utf8(text);
        Ok(text.map_err(|_| Malformed("a text that is none".to_owned()))?.to_owned())
    }

    /// Reads tokens until `out` is full.
    pub fn tokens(&mut self, out: &mut [u32]) -> Result<(), Malformed> {
        let (tokens, rest) = self.bytes.split_at_checked(4 * out.len()).ok_or_else(cut_short)?;
        self.bytes = rest;
        for (out, &token) in out.iter_mut().zip(tokens.as_chunks().0) {
            *out = u32::from_le_bytes(token);
        }
        Ok(())
    }

    /// Requires that nothing is left.
    pub fn finish(self) -> Result<(), Malformed> {
        match self.bytes.len() {
            0 => Ok(()),
            left => Err(Malformed(format!("{left} bytes too many"))),
        }
    }
}

fn cut_short() -> Malformed {
    Malformed("the message is cut short".to_owned())
}

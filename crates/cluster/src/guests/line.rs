//! What a launcher and a guest say to each other: short messages, each with the life it is about.
//!
//! A message is a front of 13 bytes (its kind, the life, the length of what follows) and a body.
//! They travel on a sealed stream, so both ends are known; lengths are bounded all the same.

use lockstep_platform::{Exit, Stream};
use std::io::{self, ErrorKind, Read};
use std::time::Duration;

/// The longest body.
const MAX_BODY_BYTES: usize = 64 << 10;

const FRONT_BYTES: usize = 13;

/// How long the other end may take to take a message.
const SENDING: Duration = Duration::from_secs(5);

/// What is said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Message {
    /// To a guest: start a worker with these variables.
    Start(Vec<(String, String)>),
    /// To a guest: ask the worker to end.
    Terminate,
    /// To a guest: end the worker.
    Kill,
    /// To a guest: the run is over, with this exit code.
    Done(u8),
    /// To a launcher: words of the worker.
    Words(Vec<u8>),
    /// To a launcher: the worker has ended.
    Ended(Exit),
}

impl Message {
    fn encode(&self, life: u64) -> Vec<u8> {
        let (kind, body): (u8, Vec<u8>) = match self {
            Self::Start(variables) => {
                let lines = variables.iter().map(|(name, value)| format!("{name}={value}\n"));
                (0, lines.collect::<String>().into_bytes())
            }
            Self::Terminate => (1, Vec::new()),
            Self::Kill => (2, Vec::new()),
            Self::Done(code) => (3, vec![*code]),
            Self::Words(bytes) => (4, bytes.clone()),
            Self::Ended(Exit::Code(code)) => (5, code.to_le_bytes().to_vec()),
            Self::Ended(Exit::Signal(number)) => (6, number.to_le_bytes().to_vec()),
        };
        assert!(body.len() <= MAX_BODY_BYTES, "a short message");
        let len = (body.len() as u32).to_le_bytes();
        [&[kind][..], &life.to_le_bytes(), &len, &body].concat()
    }

    /// The first message in these bytes and its length; nothing where it is not whole.
    fn decode(bytes: &[u8]) -> io::Result<Option<(u64, Self, usize)>> {
        let strange = || io::Error::new(ErrorKind::InvalidData, "it is not understood");
        let Some((front, rest)) = bytes.split_first_chunk::<FRONT_BYTES>() else {
            return Ok(None);
        };
        let [kind, life @ .., l0, l1, l2, l3] = *front;
        let len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if len > MAX_BODY_BYTES {
            return Err(strange());
        }
        let Some(body) = rest.get(..len) else { return Ok(None) };
        let number = || body.try_into().map(i32::from_le_bytes).map_err(|_| strange());
        let message = match (kind, body) {
            (0, _) => Self::Start(variables(body).ok_or_else(strange)?),
            (1, []) => Self::Terminate,
            (2, []) => Self::Kill,
            (3, [code]) => Self::Done(*code),
            (4, _) => Self::Words(body.to_vec()),
            (5, _) => Self::Ended(Exit::Code(number()?)),
            (6, _) => Self::Ended(Exit::Signal(number()?)),
            _ => return Err(strange()),
        };
        Ok(Some((u64::from_le_bytes(life), message, FRONT_BYTES + len)))
    }
}

fn variables(body: &[u8]) -> Option<Vec<(String, String)>> {
    let text = std::str::from_utf8(body).ok()?;
    let pair = |line: &str| line.split_once('=').map(|(a, b)| (a.to_owned(), b.to_owned()));
    text.lines().map(pair).collect()
}

/// Says something about a life.
pub(super) fn send(stream: &mut dyn Stream, life: u64, message: &Message) -> io::Result<()> {
    stream.set_deadline(Some(SENDING));
    stream.write_all(&message.encode(life))
}

/// Hears what the other end says.
pub(super) struct Ear {
    stream: Box<dyn Stream>,
    heard: Vec<u8>,
}

impl Ear {
    pub(super) fn new(stream: Box<dyn Stream>) -> Self {
        Self { stream, heard: Vec::new() }
    }

    /// The next message and its life, waiting so long for it.
    pub(super) fn next(&mut self, patience: Duration) -> io::Result<Option<(u64, Message)>> {
        loop {
            if let Some((life, message, len)) = Message::decode(&self.heard)? {
                self.heard.drain(..len);
                return Ok(Some((life, message)));
            }
            let mut buffer = [0; 4096];
            self.stream.set_deadline(Some(patience));
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.heard.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::TimedOut => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_heard_once_it_is_whole() {
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        for message in [
            Message::Start(vec![pair("RANK", "3"), pair("PLACE", "a=b")]),
            Message::Start(Vec::new()),
            Message::Terminate,
            Message::Kill,
            Message::Done(143),
            Message::Words(b"error: \xff\n".to_vec()),
            Message::Ended(Exit::Code(-1)),
            Message::Ended(Exit::Signal(9)),
        ] {
            let bytes = message.encode(7);
            for len in 0..bytes.len() {
                assert_eq!(Message::decode(&bytes[..len]).unwrap(), None, "{message:?}");
            }
            let more = [&bytes[..], b"more"].concat();
            assert_eq!(Message::decode(&more).unwrap(), Some((7, message, bytes.len())));
        }
    }

    #[test]
    fn what_nobody_says_is_refused_before_it_is_waited_for() {
        let mut long = Message::Kill.encode(1);
        long[9..13].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(Message::decode(&long).is_err());
        let mut strange = Message::Kill.encode(1);
        strange[0] = 99;
        assert!(Message::decode(&strange).is_err());
        let no_number = [&[5][..], &[0; 8], &1_u32.to_le_bytes(), b"x"].concat();
        assert!(Message::decode(&no_number).is_err());
    }
}

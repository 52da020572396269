//! Messages between launcher and agent, each with the number of its attempt.
//!
//! A message is a header of 13 bytes (kind, attempt, length of the body) and a body. Messages
//! travel on an authenticated, encrypted stream; lengths are bounded all the same.

use lockstep_platform::{Exit, Stream};
use std::io::{self, ErrorKind, Read};
use std::time::Duration;

/// Longest body of a message.
const MAX_BODY_BYTES: usize = 64 << 10;

const HEADER_BYTES: usize = 13;

/// Timeout of sending one message.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// Message between launcher and agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Message {
    /// To the agent: start a worker with these environment variables.
    Start(Vec<(String, String)>),
    /// To the agent: send SIGTERM to the worker.
    Terminate,
    /// To the agent: kill the worker.
    Kill,
    /// To the agent: the run ended with this exit code.
    Done(u8),
    /// To the launcher: output of the worker.
    Output(Vec<u8>),
    /// To the launcher: exit status of the worker.
    Exited(Exit),
}

impl Message {
    fn encode(&self, attempt: u64) -> Vec<u8> {
        let (kind, body): (u8, Vec<u8>) = match self {
            Self::Start(variables) => {
                let lines = variables.iter().map(|(name, value)| format!("{name}={value}\n"));
                (0, lines.collect::<String>().into_bytes())
            }
            Self::Terminate => (1, Vec::new()),
            Self::Kill => (2, Vec::new()),
            Self::Done(code) => (3, vec![*code]),
            Self::Output(bytes) => (4, bytes.clone()),
            Self::Exited(Exit::Code(code)) => (5, code.to_le_bytes().to_vec()),
            Self::Exited(Exit::Signal(number)) => (6, number.to_le_bytes().to_vec()),
        };
        assert!(body.len() <= MAX_BODY_BYTES, "a short message");
        let len = (body.len() as u32).to_le_bytes();
        [&[kind][..], &attempt.to_le_bytes(), &len, &body].concat()
    }

    /// First message in `bytes` and its length; `None` if it is incomplete.
    fn decode(bytes: &[u8]) -> io::Result<Option<(u64, Self, usize)>> {
        let malformed = || io::Error::new(ErrorKind::InvalidData, "malformed message");
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let [kind, attempt @ .., l0, l1, l2, l3] = *header;
        let len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if len > MAX_BODY_BYTES {
            return Err(malformed());
        }
        let Some(body) = rest.get(..len) else { return Ok(None) };
        let number = || body.try_into().map(i32::from_le_bytes).map_err(|_| malformed());
        let message = match (kind, body) {
            (0, _) => Self::Start(variables(body).ok_or_else(malformed)?),
            (1, []) => Self::Terminate,
            (2, []) => Self::Kill,
            (3, [code]) => Self::Done(*code),
            (4, _) => Self::Output(body.to_vec()),
            (5, _) => Self::Exited(Exit::Code(number()?)),
            (6, _) => Self::Exited(Exit::Signal(number()?)),
            _ => return Err(malformed()),
        };
        Ok(Some((u64::from_le_bytes(attempt), message, HEADER_BYTES + len)))
    }
}

fn variables(body: &[u8]) -> Option<Vec<(String, String)>> {
    let text = std::str::from_utf8(body).ok()?;
    let pair = |line: &str| line.split_once('=').map(|(a, b)| (a.to_owned(), b.to_owned()));
    text.lines().map(pair).collect()
}

/// Sends a message about an attempt.
pub(super) fn send(stream: &mut dyn Stream, attempt: u64, message: &Message) -> io::Result<()> {
    stream.set_deadline(Some(SEND_TIMEOUT));
    stream.write_all(&message.encode(attempt))
}

/// Reads messages from a stream.
pub(super) struct MessageReader {
    stream: Box<dyn Stream>,
    received: Vec<u8>,
}

impl MessageReader {
    pub(super) fn new(stream: Box<dyn Stream>) -> Self {
        Self { stream, received: Vec::new() }
    }

    /// Next message and its attempt; `None` after the timeout.
    pub(super) fn next(&mut self, timeout: Duration) -> io::Result<Option<(u64, Message)>> {
        // One deadline for all reads: a peer that sends single bytes does not extend it.
        self.stream.set_deadline(Some(timeout));
        loop {
            if let Some((attempt, message, len)) = Message::decode(&self.received)? {
                self.received.drain(..len);
                return Ok(Some((attempt, message)));
            }
            let mut buffer = [0; 4096];
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.received.extend_from_slice(&buffer[..count]),
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
    fn a_message_decodes_once_it_is_complete() {
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        for message in [
            Message::Start(vec![pair("RANK", "3"), pair("PLACE", "a=b")]),
            Message::Start(Vec::new()),
            Message::Terminate,
            Message::Kill,
            Message::Done(143),
            Message::Output(b"error: \xff\n".to_vec()),
            Message::Exited(Exit::Code(-1)),
            Message::Exited(Exit::Signal(9)),
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
    fn a_peer_that_sends_single_bytes_does_not_extend_the_timeout() {
        let world = lockstep_platform::real();
        let (limit, listener) = (Duration::from_secs(20), world.net().listen("127.0.0.1:0"));
        let listener = listener.unwrap();
        let mut slow = world.net().connect(&listener.local_addr(), limit).unwrap();
        let mut reader = MessageReader::new(listener.accept(limit).unwrap());
        let (stop, stopped) = std::sync::mpsc::channel();
        let body = move || {
            for byte in Message::Output(vec![b'x'; 1000]).encode(7) {
                slow.write_all(&[byte]).unwrap();
                if stopped.recv_timeout(Duration::from_millis(2)).is_ok() {
                    return slow;
                }
            }
            panic!("the reader has waited for all bytes");
        };
        #[expect(clippy::disallowed_methods, reason = "the test takes the stream back")]
        let writer = std::thread::spawn(body);
        assert_eq!(reader.next(Duration::from_millis(100)).unwrap(), None);
        stop.send(()).unwrap();
        drop(writer.join().unwrap());
    }

    #[test]
    fn malformed_messages_are_refused_at_their_header() {
        let mut long = Message::Kill.encode(1);
        long[9..13].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(Message::decode(&long).is_err());
        let mut malformed = Message::Kill.encode(1);
        malformed[0] = 99;
        assert!(Message::decode(&malformed).is_err());
        let no_number = [&[5][..], &[0; 8], &1_u32.to_le_bytes(), b"x"].concat();
        assert!(Message::decode(&no_number).is_err());
    }
}

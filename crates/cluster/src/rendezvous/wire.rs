//! Messages of the rendezvous and their encoding.
//!
//! Messages travel in encrypted records. Every message starts with a header of 16 bytes: magic,
//! protocol version, kind and length of the body. The reader checks the length against the bound of
//! that kind before it reads on, so a peer cannot make it wait for or allocate more. Numbers are
//! little-endian; a text is a length of two bytes and UTF-8.

/// Protocol version; changes with every incompatible change.
const PROTOCOL: u16 = 2;
const MAGIC: [u8; 8] = *b"lockstep";

/// Length of a message header.
pub(super) const HEADER_BYTES: usize = 16;

/// Longest body of a hello.
pub(super) const MAX_HELLO_BYTES: usize = 1024;

/// Longest text; longer ones are cut before they are sent.
const MAX_TEXT_BYTES: usize = 255;

const JOIN: u16 = 1;
const PAIR: u16 = 2;
const WELCOME: u16 = 3;
const TABLE: u16 = 4;
const REFUSED: u16 = 5;
const SESSION: u16 = 6;

/// Random identifier of a run.
pub(super) type RunId = [u8; 16];

/// First message of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Hello {
    /// Registers a rank at the rendezvous host.
    Join(Join),
    /// Opens one of the streams between two ranks.
    Pair(Pair),
    /// Opens a long-lived session.
    Session(OpenSession),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OpenSession {
    /// The run's name; may be empty.
    pub(super) run: String,
    /// Host name of the client.
    pub(super) host: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Join {
    pub(super) rank: u64,
    pub(super) num_ranks: u64,
    pub(super) num_streams: u64,
    pub(super) shares_memory: bool,
    pub(super) encrypts: bool,
    /// The run's name; may be empty.
    pub(super) run: String,
    pub(super) peer: PeerInfo,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) run: RunId,
    pub(super) rank: u64,
    /// Index over all channels; the first stream of a channel is for control.
    pub(super) stream: u64,
}

/// Answer to a hello.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// Accepts a stream or a session.
    Welcome,
    /// Table of all ranks, sent when all have registered.
    Table(Table),
    /// Rejection with its reason; the connection is closed after it.
    Refused(String),
}

/// Ranks of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) run: RunId,
    /// Indexed by rank.
    pub(super) peers: Vec<PeerInfo>,
}

/// Host and address of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PeerInfo {
    /// Host name and boot id, for reports.
    pub(super) host: String,
    /// Listening address; empty for rank 0, which listens at the rendezvous address.
    pub(super) addr: String,
}

/// Malformed message, with the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) String);

impl Hello {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut body = Writer::default();
        match self {
            Self::Join(join) => {
                for number in [join.rank, join.num_ranks, join.num_streams] {
                    body.number(number);
                }
                body.number(u64::from(join.shares_memory));
                body.number(u64::from(join.encrypts));
                body.text(&join.run);
                body.peer(&join.peer);
                body.finish(JOIN)
            }
            Self::Pair(pair) => {
                body.bytes.extend_from_slice(&pair.run);
                body.number(pair.rank);
                body.number(pair.stream);
                body.finish(PAIR)
            }
            Self::Session(session) => {
                body.text(&session.run);
                body.text(&session.host);
                body.finish(SESSION)
            }
        }
    }

    /// Decodes a whole hello.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let (header, body) = bytes.split_first_chunk().ok_or_else(cut_short)?;
        let (kind, len) = read_header(header, MAX_HELLO_BYTES)?;
        if body.len() < len {
            return Err(cut_short());
        }
        let mut body = Reader { bytes: body };
        let hello = match kind {
            JOIN => Self::Join(Join {
                rank: body.number()?,
                num_ranks: body.number()?,
                num_streams: body.number()?,
                shares_memory: body.number()? != 0,
                encrypts: body.number()? != 0,
                run: body.text()?,
                peer: body.peer()?,
            }),
            PAIR => Self::Pair(Pair {
                run: body.array()?,
                rank: body.number()?,
                stream: body.number()?,
            }),
            SESSION => Self::Session(OpenSession { run: body.text()?, host: body.text()? }),
            _ => return Err(Malformed(format!("kind {kind} is no hello"))),
        };
        body.finish()?;
        Ok(hello)
    }
}

impl Answer {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut body = Writer::default();
        match self {
            Self::Welcome => body.finish(WELCOME),
            Self::Refused(reason) => {
                body.text(reason);
                body.finish(REFUSED)
            }
            Self::Table(table) => {
                body.bytes.extend_from_slice(&table.run);
                for peer in &table.peers {
                    body.peer(peer);
                }
                body.finish(TABLE)
            }
        }
    }

    /// Longest body of an answer in a run of `num_ranks`.
    fn max_bytes(num_ranks: usize) -> usize {
        let peer = 2 * (2 + MAX_TEXT_BYTES);
        size_of::<RunId>() + peer * num_ranks.max(1)
    }

    /// Kind and body length from a header.
    pub(super) fn read_header(
        header: &[u8; HEADER_BYTES],
        num_ranks: usize,
    ) -> Result<(u16, usize), Malformed> {
        read_header(header, Self::max_bytes(num_ranks))
    }

    /// Decodes the body that follows a header.
    pub(super) fn decode(kind: u16, body: &[u8], num_ranks: usize) -> Result<Self, Malformed> {
        let mut body = Reader { bytes: body };
        let answer = match kind {
            WELCOME => Self::Welcome,
            REFUSED => Self::Refused(body.text()?),
            TABLE => {
                let run = body.array()?;
                let peers = (0..num_ranks).map(|_| body.peer()).collect::<Result<_, _>>()?;
                Self::Table(Table { run, peers })
            }
            _ => return Err(Malformed(format!("kind {kind} is no answer"))),
        };
        body.finish()?;
        Ok(answer)
    }
}

fn read_header(header: &[u8; HEADER_BYTES], max_len: usize) -> Result<(u16, usize), Malformed> {
    let mut header = Reader { bytes: header };
    if header.array()? != MAGIC {
        return Err(unknown_magic());
    }
    let protocol = u16::from_le_bytes(header.array()?);
    if protocol != PROTOCOL {
        return Err(Malformed(format!("it speaks protocol {protocol} and not {PROTOCOL}")));
    }
    let kind = u16::from_le_bytes(header.array()?);
    let len = u32::from_le_bytes(header.array()?) as usize;
    if len > max_len {
        return Err(Malformed(format!("{len} bytes are announced, and {max_len} allowed")));
    }
    Ok((kind, len))
}

fn unknown_magic() -> Malformed {
    Malformed("these are not the bytes of a lockstep run".to_owned())
}

#[derive(Default)]
struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    fn number(&mut self, number: u64) {
        self.bytes.extend_from_slice(&number.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        let text = &text[..text.floor_char_boundary(MAX_TEXT_BYTES)];
        self.bytes.extend_from_slice(&(text.len() as u16).to_le_bytes());
        self.bytes.extend_from_slice(text.as_bytes());
    }

    fn peer(&mut self, peer: &PeerInfo) {
        self.text(&peer.host);
        self.text(&peer.addr);
    }

    /// Prepends the header to the body.
    fn finish(self, kind: u16) -> Vec<u8> {
        let mut message = MAGIC.to_vec();
        message.extend_from_slice(&PROTOCOL.to_le_bytes());
        message.extend_from_slice(&kind.to_le_bytes());
        message.extend_from_slice(&(self.bytes.len() as u32).to_le_bytes());
        message.extend_from_slice(&self.bytes);
        message
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (array, rest) = self.bytes.split_first_chunk().ok_or_else(cut_short)?;
        self.bytes = rest;
        Ok(*array)
    }

    fn number(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn text(&mut self) -> Result<String, Malformed> {
        let len = usize::from(u16::from_le_bytes(self.array()?));
        if len > MAX_TEXT_BYTES {
            return Err(Malformed(format!("a text of {len} bytes, at most {MAX_TEXT_BYTES}")));
        }
        let (text, rest) = self.bytes.split_at_checked(len).ok_or_else(cut_short)?;
        self.bytes = rest;
        let text = std::str::from_utf8(text);
        Ok(text.map_err(|_| Malformed("a text that is not UTF-8".to_owned()))?.to_owned())
    }

    fn peer(&mut self) -> Result<PeerInfo, Malformed> {
        Ok(PeerInfo { host: self.text()?, addr: self.text()? })
    }

    fn finish(self) -> Result<(), Malformed> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        Err(Malformed(format!("{} bytes too many", self.bytes.len())))
    }
}

fn cut_short() -> Malformed {
    Malformed("the message is cut short".to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn peer() -> impl Strategy<Value = PeerInfo> {
        ("[a-zé0-9:.]{0,40}", "[0-9.:]{0,40}").prop_map(|(host, addr)| PeerInfo { host, addr })
    }

    fn hello() -> impl Strategy<Value = Hello> {
        let join = (any::<[u64; 3]>(), any::<[bool; 2]>(), ".{0,20}", peer()).prop_map(
            |([rank, num_ranks, num_streams], [shares_memory, encrypts], run, peer)| {
                Hello::Join(Join {
                    rank,
                    num_ranks,
                    num_streams,
                    shares_memory,
                    encrypts,
                    run,
                    peer,
                })
            },
        );
        let pair = (any::<RunId>(), any::<[u64; 2]>())
            .prop_map(|(run, [rank, stream])| Hello::Pair(Pair { run, rank, stream }));
        let session = (".{0,20}", ".{0,40}")
            .prop_map(|(run, host)| Hello::Session(OpenSession { run, host }));
        prop_oneof![join, pair, session]
    }

    fn decode_answer(bytes: &[u8], num_ranks: usize) -> Result<Answer, Malformed> {
        let (header, body) = bytes.split_first_chunk().ok_or_else(cut_short)?;
        let (kind, len) = Answer::read_header(header, num_ranks)?;
        Answer::decode(kind, body.get(..len).ok_or_else(cut_short)?, num_ranks)
    }

    proptest! {
        #[test]
        fn a_hello_round_trips_and_its_prefixes_are_incomplete(hello in hello()) {
            let bytes = hello.encode();
            for len in 0..bytes.len() {
                prop_assert_eq!(Hello::decode(&bytes[..len]), Err(cut_short()));
            }
            prop_assert_eq!(Hello::decode(&bytes), Ok(hello));
        }

        #[test]
        fn an_answer_round_trips(
            peers in prop::collection::vec(peer(), 1..20), run: RunId, reason in ".{0,60}",
        ) {
            let num_ranks = peers.len();
            let table = Answer::Table(Table { run, peers });
            for answer in [table, Answer::Welcome, Answer::Refused(reason)] {
                prop_assert_eq!(decode_answer(&answer.encode(), num_ranks), Ok(answer));
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..2000),
            kind in 0_u16..8,
            len in 0_u32..300,
        ) {
            let _ = (Hello::decode(&bytes), decode_answer(&bytes, 3));
            let mut bytes = bytes;
            if bytes.len() > HEADER_BYTES {
                bytes[..8].copy_from_slice(&MAGIC);
                bytes[8..10].copy_from_slice(&PROTOCOL.to_le_bytes());
                bytes[10..12].copy_from_slice(&kind.to_le_bytes());
                bytes[12..16].copy_from_slice(&len.to_le_bytes());
                let _ = (Hello::decode(&bytes), decode_answer(&bytes, 3));
            }
        }
    }

    #[test]
    fn a_malformed_message_has_a_reason() {
        let why = |bytes: &[u8]| Hello::decode(bytes).unwrap_err().0;
        assert_eq!(why(b"GET / HTTP/1.1\r\n"), "these are not the bytes of a lockstep run");
        let hello = Hello::Pair(Pair { run: [0; 16], rank: 1, stream: 0 }).encode();
        let mut other = hello.clone();
        other[8] = 9;
        assert_eq!(why(&other), "it speaks protocol 9 and not 2");
        let mut endless = hello.clone();
        endless[12..16].copy_from_slice(&[0xff; 4]);
        assert_eq!(why(&endless), "4294967295 bytes are announced, and 1024 allowed");
        let trailing = [&hello[..], b"more"].concat();
        assert_eq!(why(&trailing), "4 bytes too many");
    }

    #[test]
    fn the_longest_texts_still_fit_a_hello() {
        let text = "x".repeat(400);
        let peer = PeerInfo { host: text.clone(), addr: text.clone() };
        let (rank, num_ranks, num_streams) = (1, 2, 2);
        let (shares_memory, encrypts, run) = (true, true, text);
        let join = Join { rank, num_ranks, num_streams, shares_memory, encrypts, run, peer };
        let Ok(Hello::Join(read)) = Hello::decode(&Hello::Join(join).encode()) else {
            panic!("the hello decodes")
        };
        assert_eq!(read.peer.host.len(), MAX_TEXT_BYTES);
    }
}

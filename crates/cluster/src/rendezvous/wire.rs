//! What ranks say to each other before they are connected, once they know that they may.
//!
//! All of it travels in sealed records. Every message starts with a front of 16 bytes: a magic
//! word, the protocol's version, the kind of the message and the length of its body. The reader
//! checks the length against what that kind may have before it reads on, so strangers cannot make
//! it wait for, or allocate, more than that. Numbers are little-endian; texts are a length of two
//! bytes and UTF-8.

/// Changes whenever ranks of two versions would not understand each other.
const PROTOCOL: u16 = 2;
const MAGIC: [u8; 8] = *b"lockstep";

/// Length of what every message starts with.
pub(super) const FRONT_BYTES: usize = 16;

/// The longest hello, without the front.
pub(super) const MAX_HELLO_BYTES: usize = 1024;

/// The longest text; longer ones are cut before they are sent.
const MAX_TEXT_BYTES: usize = 255;

const JOIN: u16 = 1;
const PAIR: u16 = 2;
const WELCOME: u16 = 3;
const TABLE: u16 = 4;
const REFUSED: u16 = 5;
const VISIT: u16 = 6;

/// What tells one run from all others.
pub(super) type RunId = [u8; 16];

/// What a caller says first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Hello {
    /// To rank 0: I want to be part of the run.
    Join(Join),
    /// To a lower rank: this is one of the streams between us.
    Pair(Pair),
    /// To a reception: I am here, whenever somebody has a use for me.
    Visit(Visit),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Visit {
    /// The run's name; may be empty.
    pub(super) run: String,
    /// The name of its machine.
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
    pub(super) member: Member,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) run: RunId,
    pub(super) rank: u64,
    /// Counted over all lanes; the first of each lane is for control.
    pub(super) stream: u64,
}

/// What is said in return.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// To a pair: understood.
    Welcome,
    /// To those who joined, once all have.
    Table(Table),
    /// With a reason; the connection is closed after it.
    Refused(String),
}

/// All ranks of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) run: RunId,
    /// By rank.
    pub(super) members: Vec<Member>,
}

/// What the others need to know about a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Member {
    /// The name of its machine, for reports, and something that tells machines apart.
    pub(super) host: String,
    /// Where it listens; empty for rank 0, which everybody reaches at the meeting point.
    pub(super) addr: String,
}

/// Bytes that are not what they should be; says why.
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
                body.member(&join.member);
                body.finish(JOIN)
            }
            Self::Pair(pair) => {
                body.bytes.extend_from_slice(&pair.run);
                body.number(pair.rank);
                body.number(pair.stream);
                body.finish(PAIR)
            }
            Self::Visit(visit) => {
                body.text(&visit.run);
                body.text(&visit.host);
                body.finish(VISIT)
            }
        }
    }

    /// Reads a whole hello.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let (front, body) = bytes.split_first_chunk().ok_or_else(cut_short)?;
        let (kind, len) = read_front(front, MAX_HELLO_BYTES)?;
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
                member: body.member()?,
            }),
            PAIR => Self::Pair(Pair {
                run: body.array()?,
                rank: body.number()?,
                stream: body.number()?,
            }),
            VISIT => Self::Visit(Visit { run: body.text()?, host: body.text()? }),
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
                for member in &table.members {
                    body.member(member);
                }
                body.finish(TABLE)
            }
        }
    }

    /// The longest body that an answer in a run of so many ranks can have.
    fn max_bytes(num_ranks: usize) -> usize {
        let member = 2 * (2 + MAX_TEXT_BYTES);
        size_of::<RunId>() + member * num_ranks.max(1)
    }

    /// The kind and the length of what follows a front.
    pub(super) fn read_front(
        front: &[u8; FRONT_BYTES],
        num_ranks: usize,
    ) -> Result<(u16, usize), Malformed> {
        read_front(front, Self::max_bytes(num_ranks))
    }

    /// Reads what followed a front.
    pub(super) fn decode(kind: u16, body: &[u8], num_ranks: usize) -> Result<Self, Malformed> {
        let mut body = Reader { bytes: body };
        let answer = match kind {
            WELCOME => Self::Welcome,
            REFUSED => Self::Refused(body.text()?),
            TABLE => {
                let run = body.array()?;
                let members = (0..num_ranks).map(|_| body.member()).collect::<Result<_, _>>()?;
                Self::Table(Table { run, members })
            }
            _ => return Err(Malformed(format!("kind {kind} is no answer"))),
        };
        body.finish()?;
        Ok(answer)
    }
}

fn read_front(front: &[u8; FRONT_BYTES], max_len: usize) -> Result<(u16, usize), Malformed> {
    let mut front = Reader { bytes: front };
    if front.array()? != MAGIC {
        return Err(not_ours());
    }
    let protocol = u16::from_le_bytes(front.array()?);
    if protocol != PROTOCOL {
        return Err(Malformed(format!("it speaks protocol {protocol} and not {PROTOCOL}")));
    }
    let kind = u16::from_le_bytes(front.array()?);
    let len = u32::from_le_bytes(front.array()?) as usize;
    if len > max_len {
        return Err(Malformed(format!("{len} bytes are announced, and {max_len} allowed")));
    }
    Ok((kind, len))
}

fn not_ours() -> Malformed {
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

    fn member(&mut self, member: &Member) {
        self.text(&member.host);
        self.text(&member.addr);
    }

    /// Puts the front before the body.
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
        Ok(text.map_err(|_| Malformed("a text that is none".to_owned()))?.to_owned())
    }

    fn member(&mut self) -> Result<Member, Malformed> {
        Ok(Member { host: self.text()?, addr: self.text()? })
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

    fn member() -> impl Strategy<Value = Member> {
        ("[a-zé0-9:.]{0,40}", "[0-9.:]{0,40}").prop_map(|(host, addr)| Member { host, addr })
    }

    fn hello() -> impl Strategy<Value = Hello> {
        let join = (any::<[u64; 3]>(), any::<[bool; 2]>(), ".{0,20}", member()).prop_map(
            |([rank, num_ranks, num_streams], [shares_memory, encrypts], run, member)| {
                Hello::Join(Join {
                    rank,
                    num_ranks,
                    num_streams,
                    shares_memory,
                    encrypts,
                    run,
                    member,
                })
            },
        );
        let pair = (any::<RunId>(), any::<[u64; 2]>())
            .prop_map(|(run, [rank, stream])| Hello::Pair(Pair { run, rank, stream }));
        let visit =
            (".{0,20}", ".{0,40}").prop_map(|(run, host)| Hello::Visit(Visit { run, host }));
        prop_oneof![join, pair, visit]
    }

    fn decode_answer(bytes: &[u8], num_ranks: usize) -> Result<Answer, Malformed> {
        let (front, body) = bytes.split_first_chunk().ok_or_else(cut_short)?;
        let (kind, len) = Answer::read_front(front, num_ranks)?;
        Answer::decode(kind, body.get(..len).ok_or_else(cut_short)?, num_ranks)
    }

    proptest! {
        #[test]
        fn a_hello_survives_the_way_and_any_beginning_of_it_is_none(hello in hello()) {
            let bytes = hello.encode();
            for len in 0..bytes.len() {
                prop_assert_eq!(Hello::decode(&bytes[..len]), Err(cut_short()));
            }
            prop_assert_eq!(Hello::decode(&bytes), Ok(hello));
        }

        #[test]
        fn an_answer_survives_the_way(
            members in prop::collection::vec(member(), 1..20), run: RunId, reason in ".{0,60}",
        ) {
            let num_ranks = members.len();
            let table = Answer::Table(Table { run, members });
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
            if bytes.len() > FRONT_BYTES {
                bytes[..8].copy_from_slice(&MAGIC);
                bytes[8..10].copy_from_slice(&PROTOCOL.to_le_bytes());
                bytes[10..12].copy_from_slice(&kind.to_le_bytes());
                bytes[12..16].copy_from_slice(&len.to_le_bytes());
                let _ = (Hello::decode(&bytes), decode_answer(&bytes, 3));
            }
        }
    }

    #[test]
    fn what_is_refused_is_told_why() {
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
        let member = Member { host: text.clone(), addr: text.clone() };
        let (rank, num_ranks, num_streams) = (1, 2, 2);
        let (shares_memory, encrypts, run) = (true, true, text);
        let join = Join { rank, num_ranks, num_streams, shares_memory, encrypts, run, member };
        let Ok(Hello::Join(read)) = Hello::decode(&Hello::Join(join).encode()) else {
            panic!("a hello of our own is understood")
        };
        assert_eq!(read.member.host.len(), MAX_TEXT_BYTES);
    }
}

//! The reader of hellos and answers, fed with bytes that no rank has sent.

use super::wire::{Answer, FRONT_BYTES, Hello, Join, Member, Pair, Table};

/// Ranks of the run that reads.
const NUM_RANKS: usize = 3;

/// One of each thing that is said, the hellos first.
pub fn samples() -> Vec<Vec<u8>> {
    let member = Member { host: "node0 1234abcd".to_owned(), addr: "10.0.0.1:4000".to_owned() };
    let join = Join {
        rank: 1,
        num_ranks: NUM_RANKS as u64,
        num_streams: 2,
        shares_memory: true,
        encrypts: false,
        run: "a run".to_owned(),
        member: member.clone(),
    };
    let pair = Pair { run: [3; 16], rank: 2, stream: 5 };
    let table = Table { run: [3; 16], members: vec![member; NUM_RANKS] };
    vec![
        Hello::Join(join).encode(),
        Hello::Pair(pair).encode(),
        Answer::Welcome.encode(),
        Answer::Refused("no".to_owned()).encode(),
        Answer::Table(table).encode(),
    ]
}

/// Whether bytes are understood as a hello or as an answer.
pub fn decode(bytes: &[u8]) -> bool {
    let is_hello = Hello::decode(bytes).is_ok();
    let Some((front, body)) = bytes.split_first_chunk::<FRONT_BYTES>() else { return is_hello };
    let Ok((kind, len)) = Answer::read_front(front, NUM_RANKS) else { return is_hello };
    // A reader makes room for what is announced before it comes.
    let mut room = vec![0; len];
    let Some(body) = body.get(..len) else { return is_hello };
    room.copy_from_slice(body);
    is_hello || Answer::decode(kind, &room, NUM_RANKS).is_ok()
}

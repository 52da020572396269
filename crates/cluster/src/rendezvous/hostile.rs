//! Decoders of hellos and answers, exposed to tests and fuzzers.

use super::wire::{Answer, HEADER_BYTES, Hello, Join, Pair, PeerInfo, Table};

/// World size of the run that decodes.
const NUM_RANKS: usize = 3;

/// One message of each kind, hellos first.
pub fn samples() -> Vec<Vec<u8>> {
    let peer = PeerInfo { host: "node0 1234abcd".to_owned(), addr: "10.0.0.1:4000".to_owned() };
    let join = Join {
        rank: 1,
        num_ranks: NUM_RANKS as u64,
        num_streams: 2,
        shares_memory: true,
        encrypts: false,
        run: "a run".to_owned(),
        peer: peer.clone(),
    };
    let pair = Pair { run: [3; 16], rank: 2, stream: 5 };
    let table = Table { run: [3; 16], peers: vec![peer; NUM_RANKS] };
    vec![
        Hello::Join(join).encode(),
        Hello::Pair(pair).encode(),
        Answer::Welcome.encode(),
        Answer::Refused("no".to_owned()).encode(),
        Answer::Table(table).encode(),
    ]
}

/// Whether bytes decode as a hello or as an answer.
pub fn decode(bytes: &[u8]) -> bool {
    let is_hello = Hello::decode(bytes).is_ok();
    let Some((header, body)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return is_hello };
    let Ok((kind, len)) = Answer::read_header(header, NUM_RANKS) else { return is_hello };
    // A reader allocates the announced length before the body arrives.
    let mut room = vec![0; len];
    let Some(body) = body.get(..len) else { return is_hello };
    room.copy_from_slice(body);
    is_hello || Answer::decode(kind, &room, NUM_RANKS).is_ok()
}

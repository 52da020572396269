//! Readers of unauthenticated bytes, exposed to tests and fuzzers.
//!
//! Any process can connect, so no bytes may make a reader panic, wait for ever or allocate more
//! than its bound.

use std::io::{self, IoSlice};

use lockstep_platform::World;

use crate::handshake::{HANDSHAKE_BYTES, Initiator, respond};
use crate::session::Session;
use crate::ticket::Secret;

/// Genuine handshake between two ranks, recorded by a third party that injects bytes.
pub struct Eavesdropper {
    world: World,
    secret: Secret,
    /// First message of the initiator.
    pub first_message: Vec<u8>,
    /// Reply of the responder.
    pub reply: Vec<u8>,
    /// First record of the initiator; the responder has not received it.
    pub hello: Vec<u8>,
    responder: Session,
}

impl Eavesdropper {
    /// Records a handshake under a new secret; the first record contains `hello`.
    pub fn new(world: &World, hello: &[u8]) -> Self {
        let secret = Secret::new(world);
        let (initiation, first_message) = Initiator::new(world, &secret);
        let (reply, responder) =
            respond(world, &secret, &first_message).expect("the message is genuine");
        let initiator = initiation.finish(&reply).expect("the message is genuine");
        let hello = initiator.seal_one(hello);
        let (first_message, reply) = (first_message.to_vec(), reply.to_vec());
        Self { world: world.clone(), secret, first_message, reply, hello, responder }
    }

    /// Whether the responder accepts these bytes as first message.
    pub fn accepts_first_message(&self, bytes: &[u8]) -> bool {
        let first_message = <&[u8; HANDSHAKE_BYTES]>::try_from(bytes);
        first_message
            .is_ok_and(|first_message| respond(&self.world, &self.secret, first_message).is_ok())
    }

    /// Whether a new initiator accepts these bytes as reply.
    pub fn accepts_reply(&self, bytes: &[u8]) -> bool {
        let reply = <&[u8; HANDSHAKE_BYTES]>::try_from(bytes);
        let (initiation, _) = Initiator::new(&self.world, &self.secret);
        reply.is_ok_and(|reply| initiation.finish(reply).is_ok())
    }

    /// Whether the responder accepts these bytes as first record.
    pub fn accepts_hello(&self, bytes: &[u8]) -> bool {
        self.responder.open_one(bytes).is_some()
    }
}

/// Encrypts `genuine`, lets `tamper` change the records, and reads the stream `piece` bytes at a
/// time. Returns the decrypted bytes, or the kind of the error.
pub fn read_sealed(
    world: &World,
    genuine: &[u8],
    piece: usize,
    tamper: impl FnOnce(&mut Vec<u8>),
) -> Result<Vec<u8>, io::ErrorKind> {
    let secret = Secret::new(world);
    let (initiation, first_message) = Initiator::new(world, &secret);
    let (reply, responder) =
        respond(world, &secret, &first_message).expect("the message is genuine");
    let initiator = initiation.finish(&reply).expect("the message is genuine");
    let mut sealed = Vec::new();
    let mut rest = genuine;
    while !rest.is_empty() {
        let (front, back) = rest.split_at(rest.len().min(64));
        let len = initiator.seal(&[IoSlice::new(front), IoSlice::new(back)]);
        rest = &rest[len..];
        let sent = initiator.flush(|bytes| {
            sealed.extend_from_slice(bytes);
            Ok(bytes.len())
        });
        sent.expect("memory takes everything");
    }
    tamper(&mut sealed);
    let (mut opened, mut sealed) = (Vec::new(), &sealed[..]);
    let mut buffer = vec![0; 1 + piece * 7];
    loop {
        let read = responder.read(&mut buffer, !piece.is_multiple_of(2), |space| {
            let len = space.len().min(sealed.len()).min(piece.max(1));
            let (now, later) = sealed.split_at(len);
            space[..len].copy_from_slice(now);
            sealed = later;
            Ok(len)
        });
        match read {
            Ok(0) => return Ok(opened),
            Ok(len) => opened.extend_from_slice(&buffer[..len]),
            Err(error) => return Err(error.kind()),
        }
    }
}

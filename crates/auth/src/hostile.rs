//! Readers of unauthenticated bytes, exposed to tests and fuzzers.
//!
//! Any process can connect, so no bytes may make a reader panic, wait for ever or allocate more
//! than its bound.

use std::io::{self, IoSlice};

use lockstep_platform::World;

use crate::handshake::{Call, GREETING_BYTES, answer};
use crate::session::Session;
use crate::ticket::Secret;

/// A host and a genuine caller, between whom somebody else speaks.
pub struct Eavesdropper {
    world: World,
    secret: Secret,
    /// What the caller said first.
    pub greeting: Vec<u8>,
    /// What it was answered.
    pub reply: Vec<u8>,
    /// What it said then; the host has not heard it.
    pub hello: Vec<u8>,
    host: Session,
}

impl Eavesdropper {
    /// A conversation under a new secret, in which the caller says `hello`.
    pub fn new(world: &World, hello: &[u8]) -> Self {
        let secret = Secret::new(world);
        let (call, greeting) = Call::new(world, &secret);
        let (reply, host) = answer(world, &secret, &greeting).expect("it is genuine");
        let caller = call.finish(&reply).expect("it is genuine");
        let hello = caller.seal_one(hello);
        let (greeting, reply) = (greeting.to_vec(), reply.to_vec());
        Self { world: world.clone(), secret, greeting, reply, hello, host }
    }

    /// Whether the host takes these bytes for a greeting.
    pub fn greets(&self, bytes: &[u8]) -> bool {
        let greeting = <&[u8; GREETING_BYTES]>::try_from(bytes);
        greeting.is_ok_and(|greeting| answer(&self.world, &self.secret, greeting).is_ok())
    }

    /// Whether a new caller takes these bytes for the host's reply.
    pub fn replies(&self, bytes: &[u8]) -> bool {
        let reply = <&[u8; GREETING_BYTES]>::try_from(bytes);
        let (call, _) = Call::new(&self.world, &self.secret);
        reply.is_ok_and(|reply| call.finish(reply).is_ok())
    }

    /// Whether the host takes these bytes for the caller's hello.
    pub fn says_hello(&self, bytes: &[u8]) -> bool {
        self.host.open_one(bytes).is_some()
    }
}

/// Reads a sealed stream in pieces of this length: some genuine bytes, after `meddle` changed the
/// way they travel. Returns how many bytes were read, or the error's kind.
pub fn read_sealed(
    world: &World,
    genuine: &[u8],
    piece: usize,
    meddle: impl FnOnce(&mut Vec<u8>),
) -> Result<Vec<u8>, io::ErrorKind> {
    let secret = Secret::new(world);
    let (call, greeting) = Call::new(world, &secret);
    let (reply, host) = answer(world, &secret, &greeting).expect("it is genuine");
    let caller = call.finish(&reply).expect("it is genuine");
    let mut sealed = Vec::new();
    let mut rest = genuine;
    while !rest.is_empty() {
        let (front, back) = rest.split_at(rest.len().min(64));
        let len = caller.seal(&[IoSlice::new(front), IoSlice::new(back)]);
        rest = &rest[len..];
        let sent = caller.flush(|bytes| {
            sealed.extend_from_slice(bytes);
            Ok(bytes.len())
        });
        sent.expect("memory takes everything");
    }
    meddle(&mut sealed);
    let (mut opened, mut sealed) = (Vec::new(), &sealed[..]);
    let mut buffer = vec![0; 1 + piece * 7];
    loop {
        let read = host.read(&mut buffer, !piece.is_multiple_of(2), |space| {
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

//! Handshake NNpsk0 of the Noise Protocol Framework (Perrin 2018).
//!
//! ```text
//! initiator                                  responder
//!   first message: header, key, tag   ->     valid tag: the peer knows the secret, or replays
//!   valid tag: the peer knows it      <-     reply: header, key, tag
//!   first encrypted record            ->     it decrypts: the peer does not replay
//! ```
//!
//! Headers are plaintext and their format never changes, so ranks of different protocol versions
//! can still report the difference in an encrypted record. A peer without the secret costs the
//! responder a few hashes, no Diffie-Hellman product and no state.

use lockstep_platform::World;
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, HandshakeState};

use super::session::Session;
use super::ticket::Secret;

/// Noise protocol name: pattern, Diffie-Hellman function, cipher and hash.
const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";

/// First bytes of every handshake message.
const MAGIC: [u8; 8] = *b"lockstep";

/// Version of the message format; the protocol inside the session has its own version.
const FORMAT: u16 = 2;

const FIRST: u8 = 1;
const REPLY: u8 = 2;
const REFUSAL: u8 = 3;

/// Header: magic, format in two bytes, kind.
const HEADER_BYTES: usize = 11;

/// Noise payload: a public key and a tag.
const NOISE_BYTES: usize = 32 + 16;

/// Length of every handshake message: first message, reply and refusal.
pub const HANDSHAKE_BYTES: usize = HEADER_BYTES + NOISE_BYTES;

/// First message, reply or refusal.
pub type HandshakeMessage = [u8; HANDSHAKE_BYTES];

/// Reason why the handshake failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandshakeError {
    /// The bytes are no handshake message.
    UnknownProtocol,
    /// The peer does not know the secret.
    WrongSecret,
    /// The peer reports that this rank does not know the secret.
    Refused,
}

impl HandshakeError {
    /// Message about the peer.
    pub fn reason(self) -> &'static str {
        match self {
            Self::UnknownProtocol => "these are not the bytes of a lockstep run",
            Self::WrongSecret => "it does not know the run's secret",
            Self::Refused => {
                "it has another secret; LOCKSTEP_SECRET must be the same for all workers of a run"
            }
        }
    }
}

/// Whether bytes are the beginning of a handshake message.
pub fn is_handshake_prefix(bytes: &[u8]) -> bool {
    bytes.iter().zip(&header(FIRST)[..HEADER_BYTES - 1]).all(|(byte, header)| byte == header)
}

/// Initiator that waits for the reply.
pub struct Initiator(HandshakeState);

impl Initiator {
    /// Starts a handshake and returns the first message.
    pub fn new(world: &World, secret: &Secret) -> (Self, HandshakeMessage) {
        let mut state = builder(world, secret).build_initiator().expect("the pattern is complete");
        let mut message = [0; HANDSHAKE_BYTES];
        message[..HEADER_BYTES].copy_from_slice(&header(FIRST));
        let written = state.write_message(&[], &mut message[HEADER_BYTES..]);
        assert_eq!(written, Ok(NOISE_BYTES), "a key and a tag");
        (Self(state), message)
    }

    /// Completes the handshake with the reply.
    pub fn finish(mut self, reply: &HandshakeMessage) -> Result<Session, HandshakeError> {
        let (kind, noise) = split(reply)?;
        if kind == REFUSAL {
            return Err(HandshakeError::Refused);
        }
        if kind != REPLY {
            return Err(HandshakeError::UnknownProtocol);
        }
        self.0.read_message(noise, &mut []).map_err(|_| HandshakeError::WrongSecret)?;
        Ok(Session::new(self.0))
    }
}

/// Answers a first message with a reply.
pub fn respond(
    world: &World,
    secret: &Secret,
    first_message: &HandshakeMessage,
) -> Result<(HandshakeMessage, Session), HandshakeError> {
    let (kind, noise) = split(first_message)?;
    if kind != FIRST {
        return Err(HandshakeError::UnknownProtocol);
    }
    let mut state = builder(world, secret).build_responder().expect("the pattern is complete");
    state.read_message(noise, &mut []).map_err(|_| HandshakeError::WrongSecret)?;
    let mut reply = [0; HANDSHAKE_BYTES];
    reply[..HEADER_BYTES].copy_from_slice(&header(REPLY));
    let written = state.write_message(&[], &mut reply[HEADER_BYTES..]);
    assert_eq!(written, Ok(NOISE_BYTES), "a key and a tag");
    Ok((reply, Session::new(state)))
}

/// Answer to a peer with another secret. It carries no information about the secret.
pub fn refusal_message() -> HandshakeMessage {
    let mut message = [0; HANDSHAKE_BYTES];
    message[..HEADER_BYTES].copy_from_slice(&header(REFUSAL));
    message
}

fn header(kind: u8) -> [u8; HEADER_BYTES] {
    let mut header = [kind; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..10].copy_from_slice(&FORMAT.to_le_bytes());
    header
}

fn split(message: &HandshakeMessage) -> Result<(u8, &[u8]), HandshakeError> {
    let (start, noise) = message.split_at(HEADER_BYTES);
    let kind = start[HEADER_BYTES - 1];
    if start == header(kind) { Ok((kind, noise)) } else { Err(HandshakeError::UnknownProtocol) }
}

fn builder<'a>(world: &World, secret: &'a Secret) -> Builder<'a> {
    let pattern = PATTERN.parse().expect("the pattern is supported");
    let resolver = Box::new(Resolver(world.clone()));
    let builder = Builder::with_resolver(pattern, resolver);
    builder.psk(0, secret.bytes()).expect("the pattern has one pre-shared key")
}

/// Default functions with random numbers from the platform.
struct Resolver(World);

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Entropy(self.0.clone())))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        DefaultResolver.resolve_cipher(choice)
    }
}

struct Entropy(World);

impl Random for Entropy {
    fn try_fill_bytes(&mut self, dest: &mut [u8]) -> Result<(), snow::Error> {
        self.0.entropy().fill(dest);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use lockstep_platform::real;

    use super::*;

    fn complete_handshake() -> (Session, Session, HandshakeMessage, Secret) {
        let world = real();
        let secret = Secret::new(&world);
        let (initiator, message) = Initiator::new(&world, &secret);
        let (reply, responder) = respond(&world, &secret, &message).unwrap();
        (initiator.finish(&reply).unwrap(), responder, message, secret)
    }

    #[test]
    fn each_side_opens_only_records_of_the_other() {
        let (initiator, responder, ..) = complete_handshake();
        let record = initiator.seal_one(b"hello");
        assert_eq!(responder.open_one(&record).as_deref(), Some(&b"hello"[..]));
        assert_eq!(responder.open_one(&record), None, "a record decrypts once");
        let mut record = responder.seal_one(b"welcome");
        assert_eq!(responder.open_one(&record), None, "a record is not valid for its sender");
        record[5] ^= 1;
        assert_eq!(initiator.open_one(&record), None, "a changed record does not decrypt");
    }

    #[test]
    fn the_handshake_fails_without_the_secret() {
        let world = real();
        let (ours, theirs) = (Secret::new(&world), Secret::new(&world));
        let (initiator, message) = Initiator::new(&world, &theirs);
        assert_eq!(respond(&world, &ours, &message).err(), Some(HandshakeError::WrongSecret));
        // A responder without the secret replies to a message of its own.
        let (_, own_message) = Initiator::new(&world, &ours);
        let (reply, _) = respond(&world, &ours, &own_message).unwrap();
        assert_eq!(initiator.finish(&reply).err(), Some(HandshakeError::WrongSecret));
        let (initiator, _) = Initiator::new(&world, &theirs);
        assert_eq!(initiator.finish(&refusal_message()).err(), Some(HandshakeError::Refused));
    }

    #[test]
    fn a_recorded_handshake_cannot_be_replayed() {
        let (initiator, responder, message, secret) = complete_handshake();
        let hello = initiator.seal_one(b"hello");
        assert!(responder.open_one(&hello).is_some());
        // The first message is genuine, but the second responder has another key.
        let (_, second_responder) = respond(&real(), &secret, &message).unwrap();
        assert_eq!(second_responder.open_one(&hello), None);
    }

    #[test]
    fn a_handshake_message_cannot_be_used_as_another_kind() {
        let (.., message, secret) = complete_handshake();
        let (initiator, _) = Initiator::new(&real(), &secret);
        assert_eq!(
            initiator.finish(&message).err(),
            Some(HandshakeError::UnknownProtocol),
            "an echo is no reply"
        );
        let (reply, _) = respond(&real(), &secret, &message).unwrap();
        assert_eq!(respond(&real(), &secret, &reply).err(), Some(HandshakeError::UnknownProtocol));
    }

    #[test]
    fn a_handshake_message_with_a_flipped_bit_is_refused() {
        let (.., message, secret) = complete_handshake();
        let world = real();
        for bit in 0..8 * HANDSHAKE_BYTES {
            let mut changed = message;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(respond(&world, &secret, &changed).is_err(), "bit {bit}");
        }
    }
}

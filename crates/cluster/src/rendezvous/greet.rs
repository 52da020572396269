//! Both ends of a new connection find out that they belong together.

use std::io::{ErrorKind, Read, Write};

use lockstep_platform::Stream;

use super::error::Side;
use super::wire::{Answer, FRONT_BYTES, Hello};
use super::{Party, RendezvousError};
use lockstep_auth::handshake::{Call, GREETING_BYTES, Mistrust, is_like_a_greeting};
use lockstep_auth::stream::SealedStream;

/// Proves to whoever answers that this rank knows the secret, and has it do the same.
pub(super) fn greet(
    party: &Party<'_>,
    mut stream: Box<dyn Stream>,
    by: Side,
) -> Result<SealedStream, RendezvousError> {
    stream.set_deadline(Some(party.remaining()));
    let (call, greeting) = Call::new(party.world, &party.place.ticket.secret);
    let mut reply = [0; GREETING_BYTES];
    let mut num_bytes = 0;
    stream.write_all(&greeting).map_err(|error| lost(by, &error))?;
    while num_bytes < GREETING_BYTES {
        match stream.read(&mut reply[num_bytes..]) {
            Ok(0) => return Err(lost(by, &ErrorKind::UnexpectedEof.into())),
            Ok(more) => num_bytes += more,
            Err(error) => return Err(lost(by, &error)),
        }
        // Something else that listens there need not be waited for.
        if !is_like_a_greeting(&reply[..num_bytes]) {
            return Err(strange(by, Mistrust::NotOurs.reason()));
        }
    }
    match call.finish(&reply) {
        Ok(session) => Ok(SealedStream::new(stream, session)),
        Err(Mistrust::Refused) => {
            let reason = Mistrust::Refused.reason().to_owned();
            Err(RendezvousError::Refused { by, reason })
        }
        Err(mistrust) => Err(strange(by, mistrust.reason())),
    }
}

/// Says hello and waits for the answer; a refusal is an error.
pub(super) fn ask(
    party: &Party<'_>,
    stream: &mut SealedStream,
    by: Side,
    hello: &Hello,
) -> Result<Answer, RendezvousError> {
    stream.set_deadline(Some(party.remaining()));
    let num_ranks = party.place.num_ranks;
    let mut front = [0; FRONT_BYTES];
    let mut exchange = || -> std::io::Result<_> {
        stream.write_all(&hello.encode())?;
        stream.read_exact(&mut front)?;
        let (kind, len) = match Answer::read_front(&front, num_ranks) {
            Ok(front) => front,
            Err(malformed) => return Ok(Err(malformed)),
        };
        let mut body = vec![0; len];
        stream.read_exact(&mut body)?;
        Ok(Answer::decode(kind, &body, num_ranks))
    };
    match exchange() {
        Ok(Ok(Answer::Refused(reason))) => Err(RendezvousError::Refused { by, reason }),
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(malformed)) => Err(strange(by, &malformed.0)),
        Err(error) => Err(lost(by, &error)),
    }
}

pub(super) fn lost(by: Side, error: &std::io::Error) -> RendezvousError {
    let reason = match error.kind() {
        ErrorKind::TimedOut => "it did not answer in time".to_owned(),
        ErrorKind::UnexpectedEof => "it closed the connection".to_owned(),
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => "the connection broke".to_owned(),
        _ => error.to_string(),
    };
    RendezvousError::Lost { peer: by.rank(), reason }
}

/// What a peer sent is not what a rank would send, so trying again is no use.
pub(super) fn strange(by: Side, reason: &str) -> RendezvousError {
    RendezvousError::Refused { by, reason: format!("its answer is not understood: {reason}") }
}

//! Initiating side of a connection: handshake, hello and answer.

use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use lockstep_platform::Stream;

use super::error::Side;
use super::wire::{Answer, HEADER_BYTES, Hello};
use super::{JoinContext, RendezvousError};
use lockstep_auth::handshake::{HANDSHAKE_BYTES, HandshakeError, Initiator, is_handshake_prefix};
use lockstep_auth::stream::SealedStream;

/// Runs the handshake; both sides prove that they know the secret.
pub(super) fn authenticate(
    context: &JoinContext<'_>,
    mut stream: Box<dyn Stream>,
    by: Side,
) -> Result<SealedStream, RendezvousError> {
    stream.set_deadline(Some(context.remaining()));
    let (initiator, message) = Initiator::new(context.world, &context.rank_env.ticket.secret);
    let mut reply = [0; HANDSHAKE_BYTES];
    let mut num_bytes = 0;
    stream.write_all(&message).map_err(|error| lost(by, &error))?;
    while num_bytes < HANDSHAKE_BYTES {
        match stream.read(&mut reply[num_bytes..]) {
            Ok(0) => return Err(lost(by, &ErrorKind::UnexpectedEof.into())),
            Ok(more) => num_bytes += more,
            Err(error) => return Err(lost(by, &error)),
        }
        // Another service at this address is detected before it sends a full message.
        if !is_handshake_prefix(&reply[..num_bytes]) {
            return Err(protocol_error(by, HandshakeError::UnknownProtocol.reason()));
        }
    }
    match initiator.finish(&reply) {
        Ok(session) => Ok(SealedStream::new(stream, session)),
        Err(HandshakeError::Refused) => {
            let reason = HandshakeError::Refused.reason().to_owned();
            Err(RendezvousError::Refused { by, reason })
        }
        Err(error) => Err(protocol_error(by, error.reason())),
    }
}

/// Sends the hello and waits for the answer; a rejection is an error. A rank that has registered
/// is answered once all have, so the wait is reported.
pub(super) fn send_hello(
    context: &JoinContext<'_>,
    stream: &mut SealedStream,
    by: Side,
    hello: &Hello,
) -> Result<Answer, RendezvousError> {
    stream.set_deadline(Some(context.remaining()));
    let num_ranks = context.rank_env.num_ranks;
    let mut header = [0; HEADER_BYTES];
    let mut exchange = || -> std::io::Result<_> {
        stream.write_all(&hello.encode())?;
        read_answer(context, stream, by, hello, &mut header)?;
        let (kind, len) = match Answer::read_header(&header, num_ranks) {
            Ok(header) => header,
            Err(malformed) => return Ok(Err(malformed)),
        };
        let mut body = vec![0; len];
        stream.read_exact(&mut body)?;
        Ok(Answer::decode(kind, &body, num_ranks))
    };
    match exchange() {
        Ok(Ok(Answer::Refused(reason))) => Err(RendezvousError::Refused { by, reason }),
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(malformed)) => Err(protocol_error(by, &malformed.0)),
        Err(error) => Err(lost(by, &error)),
    }
}

/// Fills the header of the answer, and reports the wait of a rank that registers.
fn read_answer(
    context: &JoinContext<'_>,
    stream: &mut SealedStream,
    by: Side,
    hello: &Hello,
    header: &mut [u8],
) -> std::io::Result<()> {
    let mut num_bytes = 0;
    while num_bytes < header.len() {
        let is_reported = matches!(hello, Hello::Join(_));
        let until_report = if is_reported { context.waiting.until_next() } else { Duration::MAX };
        stream.set_deadline(Some(context.remaining().min(until_report)));
        match stream.read(&mut header[num_bytes..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(more) => num_bytes += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::TimedOut && !context.remaining().is_zero() => {
                context.waiting.report(|| {
                    let (rank, addr) = (context.rank_env.rank, &context.rank_env.master);
                    format!("rank {rank} has joined at {addr} and waits until {by} has all ranks")
                });
            }
            Err(error) => return Err(error),
        }
    }
    stream.set_deadline(Some(context.remaining()));
    Ok(())
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

/// The peer broke the protocol, so a retry is useless.
pub(super) fn protocol_error(by: Side, reason: &str) -> RendezvousError {
    RendezvousError::Refused { by, reason: format!("its answer is not understood: {reason}") }
}

//! Writes genuine messages as seed corpus of the fuzz targets.

use lockstep_cluster::rendezvous::hostile::samples;
use lockstep_comm::hostile;
use std::fs;

fn main() -> std::io::Result<()> {
    fs::create_dir_all("corpus/wire")?;
    fs::create_dir_all("corpus/rendezvous")?;
    fs::create_dir_all("corpus/handshake")?;
    let message = hostile::message();
    for piece in [1_u8, 100, 255] {
        let len = u16::try_from(message.len()).expect("a message of a test is short");
        let input = [&[piece][..], &len.to_le_bytes(), &message, &message].concat();
        fs::write(format!("corpus/wire/message-{piece}"), input)?;
    }
    for (index, sample) in samples().iter().enumerate() {
        fs::write(format!("corpus/rendezvous/sample-{index}"), sample)?;
        fs::write(format!("corpus/handshake/sample-{index}"), sample)?;
    }
    Ok(())
}

//! A layout that was given instead of searched for: `--layout tensor=4,pipeline=12,data=8`.

use lockstep_estimate::layout::{Layout, Recompute};
use lockstep_schedule::pipeline::Kind;

/// Reads a layout, or says everything that is wrong with it.
pub(super) fn parse(text: &str) -> Result<Layout, Vec<String>> {
    let (mut layout, mut wrong, mut seen) = (Layout::ONE, Vec::new(), Vec::new());
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        let (key, value) = (key.trim(), value.trim());
        let read = if value.is_empty() {
            Err("has no value; try tensor=8".into())
        } else if seen.contains(&key) {
            Err(format!("says {key} once more; try one of the two"))
        } else {
            set(&mut layout, key, value)
        };
        if let Err(reason) = read {
            wrong.push(format!("--layout {part} {reason}"));
        }
        seen.push(key);
    }
    let is_interleaved = layout.schedule == Kind::Interleaved;
    if layout.chunks > 1 && !seen.contains(&"schedule") {
        layout.schedule = Kind::Interleaved;
    } else if layout.chunks > 1 && !is_interleaved {
        wrong.push(format!(
            "--layout: devices of schedule={} have one stage each; try without virtual_stages={}, \
             or schedule=interleaved",
            layout.schedule, layout.chunks
        ));
    } else if layout.chunks == 1 && is_interleaved {
        wrong.push("--layout: schedule=interleaved needs stages; try virtual_stages=2".into());
    }
    if wrong.is_empty() { Ok(layout) } else { Err(wrong) }
}

fn set(layout: &mut Layout, key: &str, value: &str) -> Result<(), String> {
    let number =
        || value.parse::<u64>().map_err(|_| "is no whole number; try a number as 8".to_owned());
    let degree = || match number()? {
        0 => Err("must be at least 1; try 1".to_owned()),
        degree => Ok(degree),
    };
    match key {
        "tensor" => layout.tensor = degree()?,
        "pipeline" => layout.pipeline = degree()?,
        "data" => layout.data = degree()?,
        "context" => layout.context = degree()?,
        "expert" => layout.expert = degree()?,
        "virtual_stages" => layout.chunks = degree()?,
        "microbatch" => layout.microbatch = degree()?,
        "zero" => match number()? {
            stage @ 0..=3 => layout.zero = stage as u8,
            _ => return Err("is no stage of ZeRO; try 0, 1, 2 or 3".into()),
        },
        "offload" => {
            layout.offload =
                value.parse().map_err(|_| "is neither; try true or false".to_owned())?;
        }
        "sequence" => {
            layout.sequence =
                value.parse().map_err(|_| "is neither; try true or false".to_owned())?;
        }
        "recompute" => {
            layout.recompute = match value {
                "none" => Recompute::None,
                "selective" => Recompute::Selective,
                "full" => Recompute::Full,
                _ => return Err("is not known; try none, selective or full".into()),
            };
        }
        "schedule" => layout.schedule = value.parse().map_err(|error| format!("{error}"))?,
        _ => {
            return Err("is not known; try tensor, pipeline, data, context, expert, microbatch, \
                        virtual_stages, zero, offload, sequence, recompute or schedule"
                .into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_is_read_and_every_mistake_in_it_told() {
        let layout = parse("tensor=4, pipeline=12,data=8,zero=1,recompute=full").expect("a layout");
        assert_eq!((layout.devices(), layout.zero), (384, 1));
        assert_eq!(parse("virtual_stages=2").map(|layout| layout.schedule), Ok(Kind::Interleaved));
        let wrong = parse("tensor=x,zero=9,sauce=1,data,expert=0").expect_err("five mistakes");
        assert_eq!(wrong.len(), 5, "{wrong:?}");
        assert!(wrong.iter().all(|line| line.contains("; try ")), "{wrong:?}");
        for one in [
            "data=2,data=4",
            "virtual_stages=2,schedule=1f1b",
            "virtual_stages=2,schedule=zero-bubble",
            "schedule=interleaved",
        ] {
            assert_eq!(parse(one).expect_err("a contradiction").len(), 1, "{one}");
        }
    }
}

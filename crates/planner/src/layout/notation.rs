//! Layouts in text, as Megatron-LM's users write them: `TP8 PP12 DP4 mbs 1 ZeRO-1`.
//!
//! [`Layout`] prints this form, and [`Layout::parse`] accepts it beside `key=value` lists with
//! short keys (`tp=8,pp=12,dp=4`) or the names of recipe keys (`tensor=8,pipeline=12,data=4`).

use super::{Layout, Offload};
use lockstep_config::Recompute;
use lockstep_schedule::pipeline::Kind;
use std::fmt::{self, Write as _};

/// One line that explains the abbreviations of a printed layout.
pub const LEGEND: &str = "TP tensor, PP pipeline, DP data, CP context, EP expert, SP sequence \
     parallel; VPP virtual stages; mbs micro-batch size";

/// Keys of a layout: the short form and the name of the recipe key.
const KEYS: [(&str, &str); 12] = [
    ("tp", "tensor"),
    ("pp", "pipeline"),
    ("dp", "data"),
    ("cp", "context"),
    ("ep", "expert"),
    ("vpp", "virtual_stages"),
    ("mbs", "microbatch"),
    ("zero", "zero"),
    ("sp", "sequence"),
    ("recompute", "recompute"),
    ("offload", "offload"),
    ("schedule", "schedule"),
];

impl fmt::Display for Layout {
    /// `TP2 PP8 DP4 CP4 EP8 VPP2 mbs 1 ZeRO-1 SP full recompute`. Degrees of one are left out
    /// except TP, PP and DP; so is the schedule where it is 1F1B or its interleaved form.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = format!("TP{} PP{} DP{}", self.tensor, self.pipeline, self.data);
        let degrees = [("CP", self.context), ("EP", self.expert), ("VPP", self.chunks)];
        for (name, degree) in degrees.into_iter().filter(|(_, degree)| *degree > 1) {
            let _ = write!(text, " {name}{degree}");
        }
        let _ = write!(text, " mbs {}", self.microbatch);
        if self.zero > 0 {
            let _ = write!(text, " ZeRO-{}", self.zero);
        }
        if self.sequence {
            text += " SP";
        }
        if self.recompute != Recompute::None {
            let _ = write!(text, " {} recompute", self.recompute);
        }
        if self.offload.is_on() {
            let _ = write!(text, " {}", self.offload);
        }
        if self.pipeline > 1 && !matches!(self.schedule, Kind::OneFOneB | Kind::Interleaved) {
            let _ = write!(text, " {}", self.schedule);
        }
        // `pad` honours the width of a table's column.
        f.pad(&text)
    }
}

impl Layout {
    /// Reads a layout, or lists everything that is wrong with it.
    pub fn parse(text: &str) -> Result<Self, Vec<String>> {
        let (mut layout, mut wrong, mut keys) = (Self::ONE, Vec::new(), Vec::new());
        for part in parts(text) {
            let (key, value) = part.split_once('=').unwrap_or((&part, ""));
            let (key, value) = (key.trim(), value.trim());
            let short = KEYS.iter().find(|(short, long)| [*short, *long].contains(&key));
            let read = match short {
                _ if value.is_empty() => Err("has no value; try tp=8 (tensor=8)".into()),
                None => Err(format!("is not a key; try {}", spellings())),
                Some((short, _)) if keys.contains(short) => {
                    Err(format!("repeats {key}; give it once"))
                }
                Some((short, _)) => {
                    keys.push(*short);
                    set(&mut layout, short, value)
                }
            };
            if let Err(reason) = read {
                wrong.push(format!("--layout {part} {reason}"));
            }
        }
        let is_interleaved = layout.schedule == Kind::Interleaved;
        if layout.chunks > 1 && !keys.contains(&"schedule") {
            layout.schedule = Kind::Interleaved;
        } else if layout.chunks > 1 && !is_interleaved {
            wrong.push(format!(
                "--layout: schedule={} has one stage per device; try without vpp={} \
                 (virtual_stages), or schedule=interleaved",
                layout.schedule, layout.chunks
            ));
        } else if layout.chunks == 1 && is_interleaved {
            wrong.push(
                "--layout: schedule=interleaved needs virtual stages; try vpp=2 (virtual_stages=2)"
                    .into(),
            );
        }
        if wrong.is_empty() { Ok(layout) } else { Err(wrong) }
    }
}

/// Every key in both spellings.
fn spellings() -> String {
    let both = KEYS.map(
        |(short, long)| {
            if short == long { short.to_owned() } else { format!("{short} ({long})") }
        },
    );
    both.join(", ")
}

/// The `key=value` parts of a text; a printed layout is translated into them.
fn parts(text: &str) -> Vec<String> {
    if text.contains('=') || !text.contains(' ') {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        return parts.map(str::to_owned).collect();
    }
    let mut parts = Vec::new();
    let mut tokens = text.split_whitespace().peekable();
    while let Some(token) = tokens.next() {
        let lower = token.to_lowercase();
        let digits = lower.trim_start_matches(|c: char| c.is_ascii_alphabetic() || c == '-');
        let name = lower[..lower.len() - digits.len()].trim_end_matches('-');
        let is_kind = lower.parse::<Kind>().is_ok();
        parts.push(match name {
            _ if is_kind => format!("schedule={lower}"),
            "sp" | "offload" if digits.is_empty() => format!("{name}=true"),
            _ if name.starts_with("offload-") => name.replacen('-', "=", 1),
            "full" | "selective" if tokens.next_if_eq(&"recompute").is_some() => {
                format!("recompute={name}")
            }
            "mbs" if digits.is_empty() => format!("mbs={}", tokens.next().unwrap_or_default()),
            _ => format!("{name}={digits}"),
        });
    }
    parts
}

fn set(layout: &mut Layout, key: &str, value: &str) -> Result<(), String> {
    let number =
        || value.parse::<u64>().map_err(|_| "is not a whole number; try a number as 8".to_owned());
    let degree = || match number()? {
        0 => Err("must be at least 1; try 1".to_owned()),
        degree => Ok(degree),
    };
    let switch =
        || value.parse().map_err(|_| "is neither true nor false; try true or false".to_owned());
    match key {
        "tp" => layout.tensor = degree()?,
        "pp" => layout.pipeline = degree()?,
        "dp" => layout.data = degree()?,
        "cp" => layout.context = degree()?,
        "ep" => layout.expert = degree()?,
        "vpp" => layout.chunks = degree()?,
        "mbs" => layout.microbatch = degree()?,
        "zero" => match number()? {
            stage @ 0..=3 => layout.zero = stage as u8,
            _ => return Err("is not a ZeRO stage; try 0, 1, 2 or 3".into()),
        },
        "offload" => layout.offload = Offload::parse(value)?,
        "sp" => layout.sequence = switch()?,
        "recompute" => {
            let named = Recompute::NAMES.contains(&value).then(|| Recompute::from_name(value));
            layout.recompute =
                named.flatten().ok_or("is not known; try none, selective or full")?;
        }
        "schedule" => layout.schedule = value.parse().map_err(|error| format!("{error}"))?,
        _ => unreachable!("every short key is matched"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mistake_of_a_layout_is_reported_with_a_fix() {
        let layout =
            Layout::parse("tensor=4, pipeline=12,data=8,zero=1,recompute=full").expect("a layout");
        assert_eq!((layout.devices(), layout.zero), (384, 1));
        let schedule = Layout::parse("virtual_stages=2").map(|layout| layout.schedule);
        assert_eq!(schedule, Ok(Kind::Interleaved));
        let wrong =
            Layout::parse("tensor=x,zero=9,sauce=1,data,expert=0").expect_err("five mistakes");
        assert_eq!(wrong.len(), 5, "{wrong:?}");
        assert!(wrong.iter().all(|line| line.contains("; try ")), "{wrong:?}");
        assert!(wrong[2].contains("tp (tensor)"), "both spellings: {wrong:?}");
        for one in [
            "data=2,data=4",
            "dp=2,data=4",
            "virtual_stages=2,schedule=1f1b",
            "virtual_stages=2,schedule=zero-bubble",
            "schedule=interleaved",
        ] {
            assert_eq!(Layout::parse(one).expect_err("a contradiction").len(), 1, "{one}");
        }
    }

    #[test]
    fn short_keys_and_long_keys_are_the_same_layout() {
        let short = "tp=8,pp=8,dp=4,cp=2,ep=1,vpp=2,mbs=1,zero=1,sp=true,recompute=full";
        let long = "tensor=8,pipeline=8,data=4,context=2,expert=1,virtual_stages=2,microbatch=1,\
                    zero=1,sequence=true,recompute=full";
        assert_eq!(Layout::parse(short), Layout::parse(long));
        assert!(Layout::parse(short).is_ok());
    }

    #[test]
    fn offloaded_states_are_named() {
        let offload = |value: &str| Layout::parse(&format!("offload={value}")).map(|l| l.offload);
        assert_eq!(offload("true"), offload("gradients"));
        assert_eq!(offload("false"), Ok(Offload::NONE));
        let wrong = offload("disk").expect_err("it is not known");
        assert!(wrong[0].contains("parameters-nvme"), "{wrong:?}");
    }

    #[test]
    fn a_printed_layout_is_read_back() {
        for full in [
            "TP2 PP8 DP4 CP4 EP2 VPP2 mbs 1 ZeRO-1 SP full recompute",
            "TP2 PP8 DP4 CP4 EP8 VPP2 mbs 1 ZeRO-1 SP",
        ] {
            let layout = Layout::parse(full).expect("a layout");
            assert_eq!(layout.to_string(), full);
        }
        let offload = "TP1 PP4 DP2 mbs 2 ZeRO-3 selective recompute offload zero-bubble";
        assert_eq!(Layout::parse(offload).expect("a layout").to_string(), offload);
        let infinity = "TP1 PP1 DP8 mbs 1 ZeRO-3 offload-parameters-nvme";
        assert_eq!(Layout::parse(infinity).expect("a layout").to_string(), infinity);
        assert_eq!(Layout::ONE.to_string(), "TP1 PP1 DP1 mbs 1");
        assert_eq!(Layout::parse("TP1 PP1 DP1 mbs 1"), Ok(Layout::ONE));
    }
}

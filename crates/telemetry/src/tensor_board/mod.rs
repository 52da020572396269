//! TensorBoard event files: scalars, texts, histograms and timelines of a run.
//!
//! An event file is a sequence of records (TFRecord: length, checksum of the length, data, checksum
//! of the data), each of them an `Event` message. The messages are those of `event.proto`,
//! `summary.proto`, `tensor.proto` and `types.proto` of tensorflow/tensorboard; only the few fields
//! below are written. Scalars are `simple_value`, a 32-bit float, as PyTorch's `SummaryWriter`
//! writes them, because every reader knows these; so are histograms `histo` and images `image`.
//!
//! - `crc32c`: checksums; `protobuf`: wire format of messages
//! - `timeline`: image of a sampled step; `png`: its encoding

mod crc32c;
mod png;
mod protobuf;
mod timeline;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockstep_platform::{FileError, FileKind, FileWriter, World};

use crate::histogram::Histogram;
use crate::{Event, Scalar, Sink, Stamped, TelemetryError, visit_scalars};
use timeline::TimelineImage;

/// Start of the name of every event file.
const PREFIX: &str = "events.out.tfevents.";

/// Capacity for the record of any step, so that the buffer does not grow during training.
const RECORD_BYTES: usize = 4096;

/// Fields of `Event`.
mod event {
    pub(super) const WALL_TIME: u32 = 1;
    pub(super) const STEP: u32 = 2;
    pub(super) const FILE_VERSION: u32 = 3;
    pub(super) const SUMMARY: u32 = 5;
    pub(super) const SESSION_LOG: u32 = 7;
}

/// Fields of `Summary.Value`, and of the messages in it.
mod value {
    pub(super) const TAG: u32 = 1;
    pub(super) const SIMPLE_VALUE: u32 = 2;
    pub(super) const IMAGE: u32 = 4;
    pub(super) const HISTOGRAM: u32 = 5;
    pub(super) const TENSOR: u32 = 8;
    pub(super) const METADATA: u32 = 9;
    pub(super) const TENSOR_DTYPE: u32 = 1;
    pub(super) const TENSOR_SHAPE: u32 = 2;
    pub(super) const TENSOR_STRING: u32 = 8;
    pub(super) const SHAPE_DIM: u32 = 2;
    pub(super) const DIM_SIZE: u32 = 1;
    /// Value of `DataType`.
    pub(super) const DT_STRING: u64 = 7;
    pub(super) const PLUGIN_DATA: u32 = 1;
    pub(super) const PLUGIN_NAME: u32 = 1;
    pub(super) const DESCRIPTION: u32 = 3;
    /// `data_class`, and its value for tensors.
    pub(super) const DATA_CLASS: u32 = 4;
    pub(super) const CLASS_TENSOR: u64 = 2;
}

/// Fields of `Summary.Image`, and its value for colours.
mod image {
    pub(super) const HEIGHT: u32 = 1;
    pub(super) const WIDTH: u32 = 2;
    pub(super) const COLORSPACE: u32 = 3;
    pub(super) const FILE: u32 = 4;
    pub(super) const RGB: u64 = 3;
}

/// Fields of `HistogramProto`.
mod histogram {
    pub(super) const MIN: u32 = 1;
    pub(super) const MAX: u32 = 2;
    pub(super) const NUM: u32 = 3;
    pub(super) const SUM: u32 = 4;
    pub(super) const SUM_SQUARES: u32 = 5;
    pub(super) const LIMITS: u32 = 6;
    pub(super) const COUNTS: u32 = 7;
}

/// Field of the values in a `Summary`.
const SUMMARY_VALUE: u32 = 1;

/// Field and value of `SessionLog` by which readers drop what earlier files have from a step on.
const SESSION_STATUS: u32 = 1;
const SESSION_START: u64 = 1;

/// An event file, open for writing.
pub struct TensorBoard {
    path: PathBuf,
    file: Box<dyn FileWriter>,
    /// Wall time at which the time of events is zero.
    origin: Duration,
    record: Vec<u8>,
    tag: String,
}

impl TensorBoard {
    /// Creates an event file in a folder, in place of the earlier ones there, and writes texts:
    /// names with Markdown.
    pub fn create(
        world: &World,
        folder: &Path,
        texts: &[(&str, String)],
    ) -> Result<Self, TelemetryError> {
        remove_earlier(world, folder)?;
        let (wall, name) = (world.clock().wall(), world.host().name());
        let path = folder.join(format!("{PREFIX}{:010}.{name}", wall.as_secs()));
        let mut sink = Self {
            file: world.files().create(&path)?,
            path,
            origin: wall.saturating_sub(world.clock().now()),
            record: Vec::with_capacity(RECORD_BYTES),
            tag: String::with_capacity(64),
        };
        let started = wall.as_secs_f64();
        sink.write_event(started, 0, |event, _| {
            protobuf::bytes(event, event::FILE_VERSION, b"brain.Event:2");
        })?;
        sink.write_event(started, 0, |event, _| {
            protobuf::message(event, event::SESSION_LOG, |log| {
                protobuf::integer(log, SESSION_STATUS, SESSION_START);
            });
        })?;
        for (tag, text) in texts {
            sink.write_event(started, 0, |event, _| push_text(event, tag, text))?;
        }
        Ok(sink)
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes an event whose content `write` appends.
    fn write_event(
        &mut self,
        wall_time: f64,
        step: u64,
        write: impl FnOnce(&mut Vec<u8>, &mut String),
    ) -> Result<(), TelemetryError> {
        let Self { record, tag, .. } = self;
        record.clear();
        record.resize(HEAD_BYTES, 0);
        protobuf::double(record, event::WALL_TIME, wall_time);
        protobuf::integer(record, event::STEP, step);
        write(record, tag);
        frame(record);
        self.file.write_all(record).map_err(|error| TelemetryError::Write {
            sink: self.path.display().to_string(),
            reason: error.to_string(),
        })
    }
}

impl Sink for TensorBoard {
    fn write(&mut self, stamped: &Stamped) -> Result<(), TelemetryError> {
        let wall_time = self.origin.as_secs_f64() + stamped.seconds;
        if let Event::Sample { text } = &stamped.event {
            return self.write_event(wall_time, 0, |event, _| push_text(event, "sample", text));
        }
        if let Event::TaskSpans { step, spans } = &stamped.event {
            let Some(drawn) = timeline::draw(spans) else { return Ok(()) };
            return self.write_event(wall_time, *step, |event, _| push_image(event, &drawn));
        }
        if let Event::Histogram { step, of, tensor, values } = &stamped.event {
            return self.write_event(wall_time, *step, |event, tag| {
                tag.clear();
                let _ = std::fmt::Write::write_fmt(tag, format_args!("{of}/{tensor}"));
                push_histogram(event, tag, values);
            });
        }
        let mut found = None;
        visit_scalars(&stamped.event, &mut |scalar| found = Some(scalar.step));
        let Some(step) = found else { return Ok(()) };
        self.write_event(wall_time, step, |event, tag| {
            protobuf::message(event, event::SUMMARY, |summary| {
                visit_scalars(&stamped.event, &mut |scalar| push_scalar(summary, tag, &scalar));
            });
        })
    }

    fn flush(&mut self) -> Result<(), TelemetryError> {
        Ok(self.file.sync()?)
    }
}

/// Removes the event files of earlier attempts, whose events the new file repeats.
fn remove_earlier(world: &World, folder: &Path) -> Result<(), FileError> {
    world.files().create_dir_all(folder)?;
    for path in world.files().list(folder)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_file = matches!(world.files().metadata(&path), Some(FileKind::File { .. }));
        if is_file && name.starts_with(PREFIX) {
            world.files().remove_file(&path)?;
        }
    }
    Ok(())
}

fn push_scalar(summary: &mut Vec<u8>, tag: &mut String, scalar: &Scalar<'_>) {
    tag.clear();
    scalar.write_tag(tag);
    protobuf::message(summary, SUMMARY_VALUE, |it| {
        protobuf::bytes(it, value::TAG, tag.as_bytes());
        protobuf::float(it, value::SIMPLE_VALUE, scalar.value as f32);
    });
}

/// A text, as a tensor of one string for the plugin `text`.
fn push_text(event: &mut Vec<u8>, tag: &str, text: &str) {
    protobuf::message(event, event::SUMMARY, |summary| {
        protobuf::message(summary, SUMMARY_VALUE, |it| {
            protobuf::bytes(it, value::TAG, tag.as_bytes());
            protobuf::message(it, value::TENSOR, |tensor| {
                protobuf::integer(tensor, value::TENSOR_DTYPE, value::DT_STRING);
                protobuf::message(tensor, value::TENSOR_SHAPE, |shape| {
                    protobuf::message(shape, value::SHAPE_DIM, |dim| {
                        protobuf::integer(dim, value::DIM_SIZE, 1);
                    });
                });
                protobuf::bytes(tensor, value::TENSOR_STRING, text.as_bytes());
            });
            protobuf::message(it, value::METADATA, |metadata| {
                protobuf::message(metadata, value::PLUGIN_DATA, |plugin| {
                    protobuf::bytes(plugin, value::PLUGIN_NAME, b"text");
                });
                protobuf::integer(metadata, value::DATA_CLASS, value::CLASS_TENSOR);
            });
        });
    });
}

/// A timeline, with what its rows mean as its description.
fn push_image(event: &mut Vec<u8>, drawn: &TimelineImage) {
    protobuf::message(event, event::SUMMARY, |summary| {
        protobuf::message(summary, SUMMARY_VALUE, |it| {
            protobuf::bytes(it, value::TAG, b"timeline");
            protobuf::message(it, value::IMAGE, |image| {
                protobuf::integer(image, image::HEIGHT, drawn.height as u64);
                protobuf::integer(image, image::WIDTH, drawn.width as u64);
                protobuf::integer(image, image::COLORSPACE, image::RGB);
                protobuf::bytes(image, image::FILE, &drawn.file);
            });
            protobuf::message(it, value::METADATA, |metadata| {
                protobuf::message(metadata, value::PLUGIN_DATA, |plugin| {
                    protobuf::bytes(plugin, value::PLUGIN_NAME, b"images");
                });
                protobuf::bytes(metadata, value::DESCRIPTION, drawn.description.as_bytes());
            });
        });
    });
}

fn push_histogram(event: &mut Vec<u8>, tag: &str, values: &Histogram) {
    protobuf::message(event, event::SUMMARY, |summary| {
        protobuf::message(summary, SUMMARY_VALUE, |it| {
            protobuf::bytes(it, value::TAG, tag.as_bytes());
            protobuf::message(it, value::HISTOGRAM, |it| {
                protobuf::double(it, histogram::MIN, values.min);
                protobuf::double(it, histogram::MAX, values.max);
                protobuf::double(it, histogram::NUM, values.num as f64);
                protobuf::double(it, histogram::SUM, values.sum);
                protobuf::double(it, histogram::SUM_SQUARES, values.sum_squares);
                protobuf::doubles(it, histogram::LIMITS, values.limits.iter().copied());
                let counts = values.counts.iter().map(|count| *count as f64);
                protobuf::doubles(it, histogram::COUNTS, counts);
            });
        });
    });
}

/// Length and its checksum in front of a record.
const HEAD_BYTES: usize = 12;

/// Completes a record: the data follows room for the head.
fn frame(record: &mut Vec<u8>) {
    let data = &record[HEAD_BYTES..];
    let (len, checksum) = ((data.len() as u64).to_le_bytes(), crc32c::masked(data));
    record[..8].copy_from_slice(&len);
    record[8..HEAD_BYTES].copy_from_slice(&crc32c::masked(&len).to_le_bytes());
    record.extend_from_slice(&checksum.to_le_bytes());
}

#[cfg(test)]
mod tests;

//! Writes documents as JSON Lines under a hidden name, and renames the finished file.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lockstep_platform::{FileAction, FileError, FileKind, FileWriter, World};

use super::error::DocumentError;
use crate::error::DataError;

/// Size of the write buffer.
const BUFFER_BYTES: usize = 1 << 18;

/// A JSON Lines file that appears when it is complete.
pub struct DocumentWriter {
    world: World,
    target: PathBuf,
    partial: PathBuf,
    field: String,
    writer: Option<BufWriter<Box<dyn FileWriter>>>,
}

impl DocumentWriter {
    /// Starts a file at `target`, which must not exist; `field` has the text.
    pub fn create(target: &Path, field: &str, world: &World) -> Result<Self, DataError> {
        require_free(target, world)?;
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        let unique = world.entropy().u64();
        let partial = target.with_file_name(format!(".{name}.{unique:016x}.partial"));
        let file = world.files().create(&partial)?;
        Ok(Self {
            world: Arc::clone(world),
            target: target.to_owned(),
            partial,
            field: field.to_owned(),
            writer: Some(BufWriter::with_capacity(BUFFER_BYTES, file)),
        })
    }

    /// Appends a document.
    pub fn push(&mut self, text: &str) -> Result<(), DataError> {
        let writer = self.writer.as_mut().expect("the file is not finished");
        let write = |writer: &mut BufWriter<_>, field: &str| -> std::io::Result<()> {
            writer.write_all(b"{")?;
            serde_json::to_writer(&mut *writer, field)?;
            writer.write_all(b":")?;
            serde_json::to_writer(&mut *writer, text)?;
            writer.write_all(b"}\n")
        };
        Ok(write(writer, &self.field)
            .map_err(|error| FileError::new(FileAction::Write, &self.partial, &error))?)
    }

    /// Syncs the file and gives it its name.
    pub fn finish(mut self) -> Result<(), DataError> {
        let mut writer = self.writer.take().expect("the file is not finished");
        let flushed = writer.flush();
        flushed.map_err(|error| FileError::new(FileAction::Write, &self.partial, &error))?;
        writer.get_mut().sync()?;
        // Another process may have created the target meanwhile.
        require_free(&self.target, &self.world)?;
        Ok(self.world.files().rename(&self.partial, &self.target)?)
    }
}

impl Drop for DocumentWriter {
    fn drop(&mut self) {
        // After `finish` there is no such file; a failure here leaves only a hidden one.
        self.writer = None;
        let _ = self.world.files().remove_file(&self.partial);
    }
}

/// Refuses a target that exists, or whose folder does not.
fn require_free(target: &Path, world: &World) -> Result<(), DataError> {
    let path = target.to_owned();
    if world.files().metadata(target).is_some() || target.file_name().is_none() {
        return Err(DocumentError::Exists { path }.into());
    }
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty());
    if folder.is_some_and(|folder| world.files().metadata(folder) != Some(FileKind::Directory)) {
        return Err(DocumentError::NoFolder { path }.into());
    }
    Ok(())
}

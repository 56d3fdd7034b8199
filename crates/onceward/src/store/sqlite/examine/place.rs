//! Where the file is: the file system, its room, and who may write there.

use std::{
    fs::{self, Metadata},
    path::{Path, PathBuf},
};

use super::open::parent;
use crate::store::site::Finding;

/// File systems over a network, where SQLite's locks cannot be relied on.
const NETWORK: [&str; 14] = [
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "afs",
    "ceph",
    "fuse.ceph",
    "fuse.sshfs",
    "fuse.glusterfs",
    "lustre",
    "gpfs",
    "fuse.s3fs",
];

/// File systems that are gone with the machine's memory.
const MEMORY: [&str; 2] = ["tmpfs", "ramfs"];

/// Less room than this is worth knowing: 1 GiB.
const ROOM_MIN: u64 = 1 << 30;

pub(super) fn examine(path: &Path, metadata: Option<&Metadata>) -> Vec<Finding> {
    let directory = fs::canonicalize(parent(path));
    let Ok(directory) = directory else {
        return vec![Finding::broken(
            "folder",
            format!("{} is not there", parent(path).display()),
            "make it; the store makes the file only",
        )];
    };
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    vec![
        file_system(kind_of(&mounts, &directory)),
        free_space(&directory),
        permissions(path, &directory, metadata),
    ]
}

fn file_system(kind: Option<&str>) -> Finding {
    const NAME: &str = "file system";
    match kind {
        None => Finding::note(
            NAME,
            "not known on this system",
            "make sure that it is on a disk of this machine: a network file system is not safe",
        ),
        Some(kind) if NETWORK.contains(&kind) => Finding::broken(
            NAME,
            kind,
            "move the file to a disk of this machine: over a network two processes can both hold its \
             lock",
        ),
        Some(kind) if MEMORY.contains(&kind) => Finding::volatile(
            NAME,
            kind,
            "move the file to a disk: this one is empty after a restart of the machine",
        ),
        Some("overlay") => Finding::note(
            NAME,
            "overlay",
            "if this is a container, put the file on a volume: its own layer goes with it",
        ),
        Some(kind) => Finding::ok(NAME, kind),
    }
}

/// The file system that a folder is on, from the mounts as Linux tells them.
fn kind_of<'m>(mounts: &'m str, directory: &Path) -> Option<&'m str> {
    let mounts = mounts.lines().filter_map(|line| {
        // ... MOUNT-POINT ... - KIND SOURCE OPTIONS, with spaces in paths as \040
        let (before, after) = line.split_once(" - ")?;
        let point = before.split(' ').nth(4)?.replace("\\040", " ");
        Some((PathBuf::from(point), after.split(' ').next()?))
    });
    // Of two at one place the later one hides the other.
    let over = mounts.filter(|(point, _)| directory.starts_with(point));
    over.max_by_key(|(point, _)| point.components().count()).map(|(_, kind)| kind)
}

#[cfg(unix)]
fn free_space(directory: &Path) -> Finding {
    const NAME: &str = "free space";
    match rustix::fs::statvfs(directory) {
        Ok(stat) => {
            let free = stat.f_bavail.saturating_mul(stat.f_frsize);
            let found = format!("{} MiB", free >> 20);
            if free < ROOM_MIN {
                let advice = "make room: when the disk is full, new keys are refused with 503";
                Finding::note(NAME, found, advice)
            } else {
                Finding::ok(NAME, found)
            }
        }
        Err(error) => Finding::failed(NAME, error.to_string()),
    }
}

#[cfg(not(unix))]
fn free_space(_: &Path) -> Finding {
    Finding::note("free space", "not known on this system", "see to it that the disk does not fill")
}

/// Whether this process may write there, and who else may read or write.
#[cfg(unix)]
fn permissions(path: &Path, directory: &Path, metadata: Option<&Metadata>) -> Finding {
    use std::os::unix::fs::PermissionsExt as _;

    use rustix::fs::{Access, access};

    const NAME: &str = "permissions";
    const STICKY: u32 = 0o1000;
    let write = Access::READ_OK | Access::WRITE_OK;
    if access(directory, write | Access::EXEC_OK).is_err() {
        return Finding::broken(
            NAME,
            format!("this process may not write in {}", directory.display()),
            "let it: SQLite keeps its log beside the file",
        );
    }
    if metadata.is_some_and(|metadata| metadata.permissions().readonly())
        || (metadata.is_some() && access(path, write).is_err())
    {
        return Finding::broken(NAME, "this process may not write the file", "let it");
    }
    let mode = |metadata: &Metadata| metadata.permissions().mode();
    let others = metadata.map_or(0, |metadata| mode(metadata) & 0o077);
    let folder = fs::metadata(directory).as_ref().map_or(0, mode);
    if others != 0 {
        Finding::note(
            NAME,
            format!("others may use the file too (mode {:o})", metadata.map_or(0, mode) & 0o777),
            "chmod 600: it holds replies to your clients",
        )
    } else if folder & 0o002 != 0 && folder & STICKY == 0 {
        Finding::note(
            NAME,
            format!("everybody may rename and remove files in {}", directory.display()),
            "keep the file in a folder of its own",
        )
    } else {
        Finding::ok(NAME, "for its owner only")
    }
}

#[cfg(not(unix))]
fn permissions(_: &Path, _: &Path, metadata: Option<&Metadata>) -> Finding {
    const NAME: &str = "permissions";
    if metadata.is_some_and(|metadata| metadata.permissions().readonly()) {
        Finding::broken(NAME, "this process may not write the file", "let it")
    } else {
        Finding::ok(NAME, "writable")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::site::Verdict;

    const MOUNTS: &str = "\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:21 / /dev/shm rw,nosuid - tmpfs tmpfs rw
24 22 0:50 / /mnt/share rw master:3 - nfs4 server:/export rw,vers=4.2
25 22 0:51 / /mnt/with\\040space rw - cifs //server/share rw
26 22 8:2 / /var/lib rw - xfs /dev/sdb rw";

    #[test]
    fn a_folder_is_on_the_file_system_that_is_mounted_nearest_above_it() {
        let kind = |path: &str| kind_of(MOUNTS, Path::new(path));
        assert_eq!(kind("/home"), Some("ext4"));
        assert_eq!(kind("/var/lib/onceward"), Some("xfs"));
        assert_eq!(kind("/var/library"), Some("ext4"), "not below /var/lib");
        assert_eq!(kind("/mnt/share/a"), Some("nfs4"));
        assert_eq!(kind("/mnt/with space"), Some("cifs"));
        assert_eq!(kind_of("", Path::new("/home")), None);
    }

    #[test]
    fn a_network_file_system_is_unsafe_and_memory_is_not_durable() {
        let verdict = |kind| file_system(kind).verdict;
        assert_eq!(verdict(Some("ext4")), Verdict::Ok);
        assert_eq!(verdict(Some("nfs4")), Verdict::Unsafe);
        assert_eq!(verdict(Some("tmpfs")), Verdict::Unsafe);
        assert_eq!(verdict(Some("overlay")), Verdict::Note);
        assert_eq!(verdict(None), Verdict::Note);
    }
}

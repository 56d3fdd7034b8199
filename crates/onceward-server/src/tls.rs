//! TLS settings, for clients and for upstream: one provider, PEM files, errors that name the file.

use std::{
    path::Path,
    sync::{Arc, RwLock},
};

use anyhow::{Context as _, Result, bail, ensure};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

use crate::config::{KeyPair, UpstreamSettings};

/// What both sides call the protocols.
pub(crate) const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// The certificate that clients are shown. Can be read anew while connections are open: those keep
/// the one they began with.
pub(crate) struct Certificate {
    files: KeyPair,
    current: RwLock<Arc<ServerConfig>>,
}

impl Certificate {
    pub(crate) fn load(files: &KeyPair) -> Result<Arc<Certificate>> {
        let current = RwLock::new(server(files)?);
        Ok(Arc::new(Certificate { files: files.clone(), current }))
    }

    /// Reads the same files again. On an error the old certificate stays in use.
    pub(crate) fn reload(&self) -> Result<()> {
        let new = server(&self.files)?;
        *self.current.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = new;
        Ok(())
    }

    pub(crate) fn current(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current.read().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }
}

fn server(files: &KeyPair) -> Result<Arc<ServerConfig>> {
    let (certificates, key) = read(files)?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .context("TLS cannot be set up")?
        .with_no_client_auth()
        .with_single_cert(certificates, key)
        .with_context(|| not_a_pair(files))?;
    config.alpn_protocols = vec![HTTP2.to_vec(), HTTP1.to_vec()];
    Ok(Arc::new(config))
}

/// How upstream is recognised, and how we say who we are. The second speaks HTTP/1.1 only.
pub(crate) fn client(
    settings: &UpstreamSettings,
) -> Result<(Arc<ClientConfig>, Arc<ClientConfig>)> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .context("TLS cannot be set up")?
        .with_root_certificates(authorities(settings.ca_file.as_deref())?);
    let mut config = match &settings.client {
        None => builder.with_no_client_auth(),
        Some(files) => {
            let (certificates, key) = read(files)?;
            builder.with_client_auth_cert(certificates, key).with_context(|| not_a_pair(files))?
        }
    };
    config.alpn_protocols = vec![HTTP1.to_vec()];
    let only_http1 = Arc::new(config.clone());
    config.alpn_protocols = match settings.http2 {
        None => vec![HTTP2.to_vec(), HTTP1.to_vec()],
        Some(true) => vec![HTTP2.to_vec()],
        Some(false) => vec![HTTP1.to_vec()],
    };
    Ok((Arc::new(config), only_http1))
}

/// Said explicitly, so that no other crate's choice can change it or make it ambiguous.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

fn authorities(ca_file: Option<&Path>) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    match ca_file {
        Some(path) => {
            for certificate in certificates(path)? {
                roots.add(certificate).with_context(|| path.display().to_string())?;
            }
        }
        None => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            ensure!(
                !roots.is_empty(),
                "this system has no certificate authorities by which to recognise an https \
                 upstream; install ca-certificates, or set upstream.ca_file"
            );
        }
    }
    Ok(roots)
}

fn read(files: &KeyPair) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
    let path = files.key_file.as_path();
    let Ok(key) = PrivateKeyDer::from_pem_file(path) else {
        // The reason may hold a part of the key.
        bail!("{} cannot be read, or holds no private key in PEM", path.display());
    };
    Ok((certificates(&files.cert_file)?, key))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let name = path.display();
    let found = CertificateDer::pem_file_iter(path);
    let found = found.with_context(|| format!("{name} cannot be read"))?;
    let found: Result<Vec<_>, _> = found.collect();
    let found = found.with_context(|| format!("{name} is not PEM"))?;
    ensure!(!found.is_empty(), "{name} holds no certificate in PEM");
    Ok(found)
}

fn not_a_pair(files: &KeyPair) -> String {
    format!(
        "the certificate {} and the key {} do not go together",
        files.cert_file.display(),
        files.key_file.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(folder: &Path, name: &str) -> KeyPair {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).expect("certificate");
        let files = KeyPair {
            cert_file: folder.join(format!("{name}.crt")),
            key_file: folder.join(format!("{name}.key")),
        };
        std::fs::write(&files.cert_file, made.cert.pem()).expect("written");
        std::fs::write(&files.key_file, made.signing_key.serialize_pem()).expect("written");
        files
    }

    #[test]
    fn a_certificate_is_read_again_and_a_damaged_one_leaves_the_old_in_use() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let files = written(folder.path(), "one");
        let certificate = Certificate::load(&files).expect("valid");
        let first = certificate.current();
        certificate.reload().expect("still valid");
        let second = certificate.current();
        assert!(!Arc::ptr_eq(&first, &second));
        std::fs::write(&files.cert_file, "nonsense").expect("written");
        let error = certificate.reload().expect_err("damaged").to_string();
        assert!(error.contains("one.crt"), "{error}");
        assert!(Arc::ptr_eq(&second, &certificate.current()));
    }

    #[test]
    fn files_that_cannot_be_used_are_named_and_no_key_is_shown() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let (one, other) = (written(folder.path(), "one"), written(folder.path(), "other"));
        let mixed = KeyPair { key_file: other.key_file, ..one.clone() };
        let error = |files: &KeyPair| {
            let error = Certificate::load(files).err().expect("refused");
            format!("{error:#}")
        };
        assert!(error(&mixed).contains("do not go together"), "{}", error(&mixed));
        let missing = KeyPair { key_file: "/does/not/exist".into(), ..one.clone() };
        assert!(error(&missing).contains("/does/not/exist"));
        let not_a_key = KeyPair { key_file: one.cert_file.clone(), ..one.clone() };
        assert!(error(&not_a_key).contains("no private key"));
        assert!(Certificate::load(&one).is_ok());
    }

    #[test]
    fn what_is_offered_to_upstream_is_as_it_was_asked_for() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let ca_file = Some(written(folder.path(), "ca").cert_file);
        for (http2, offered) in
            [(None, &[HTTP2, HTTP1][..]), (Some(true), &[HTTP2]), (Some(false), &[HTTP1])]
        {
            let settings =
                UpstreamSettings { http2, ca_file: ca_file.clone(), ..Default::default() };
            let (config, only_http1) = client(&settings).expect("valid");
            assert_eq!(config.alpn_protocols, offered);
            assert_eq!(only_http1.alpn_protocols, [HTTP1]);
        }
    }
}

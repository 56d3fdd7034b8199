use std::{
    io,
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    sync::Arc,
};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned,
    crypto::aws_lc_rs::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
    server::WebPkiClientVerifier,
};

use super::LONGEST;

/// A certificate authority in a folder.
pub(crate) struct Authority {
    folder: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

impl Authority {
    pub(crate) fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).expect("valid");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("key");
        let certificate = params.self_signed(&key).expect("signed");
        let folder = tempfile::tempdir().expect("temporary folder");
        std::fs::write(folder.path().join("ca.crt"), certificate.pem()).expect("written");
        let certificate = certificate.der().clone();
        Authority { folder, issuer: Issuer::new(params, key), certificate }
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    /// Writes `NAME.crt` and `NAME.key` for this machine, over what was there.
    pub(crate) fn issue(&self, name: &str) {
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()]);
        let key = KeyPair::generate().expect("key");
        let certificate = params.expect("valid").signed_by(&key, &self.issuer).expect("signed");
        let write = |file: String, pem: String| std::fs::write(self.path(&file), pem);
        write(format!("{name}.crt"), certificate.pem()).expect("written");
        write(format!("{name}.key"), key.serialize_pem()).expect("written");
    }

    /// As lines of TOML: `PREFIXcert_file` and `PREFIXkey_file`.
    pub(crate) fn settings(&self, prefix: &str, name: &str) -> String {
        let path = |file: String| self.path(&file).display().to_string();
        let (cert, key) = (path(format!("{name}.crt")), path(format!("{name}.key")));
        format!("{prefix}cert_file = \"{cert}\"\n{prefix}key_file = \"{key}\"\n")
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).expect("valid");
        roots
    }

    /// The side of a client that trusts this authority.
    pub(crate) fn connect(
        &self,
        to: SocketAddr,
        offered: &[&str],
    ) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
        let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .expect("valid")
            .with_root_certificates(self.roots())
            .with_no_client_auth();
        config.alpn_protocols = offered.iter().map(|name| name.as_bytes().to_vec()).collect();
        let name = ServerName::try_from("localhost").expect("a name");
        let mut client = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
        let mut stream = TcpStream::connect(to)?;
        stream.set_read_timeout(Some(LONGEST))?;
        while client.is_handshaking() {
            client.complete_io(&mut stream)?;
        }
        Ok(StreamOwned::new(client, stream))
    }

    /// The side of a server. With `asks`, clients need a certificate of this authority.
    pub(crate) fn server(&self, name: &str, offered: &[&str], asks: bool) -> Arc<ServerConfig> {
        let provider = Arc::new(default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .expect("valid");
        let builder = match asks {
            true => {
                let roots = Arc::new(self.roots());
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
                builder.with_client_cert_verifier(verifier.build().expect("valid"))
            }
            false => builder.with_no_client_auth(),
        };
        let chain = read_chain(&self.path(&format!("{name}.crt")));
        let key = PrivateKeyDer::from_pem_file(self.path(&format!("{name}.key"))).expect("a key");
        let mut config = builder.with_single_cert(chain, key).expect("valid");
        config.alpn_protocols = offered.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }
}

/// Takes a connection over TLS; none if the other side does not want it.
pub(crate) fn accept(
    config: &Arc<ServerConfig>,
    mut stream: TcpStream,
) -> Option<StreamOwned<ServerConnection, TcpStream>> {
    let mut server = ServerConnection::new(Arc::clone(config)).expect("valid");
    while server.is_handshaking() {
        server.complete_io(&mut stream).ok()?;
    }
    Some(StreamOwned::new(server, stream))
}

pub(crate) fn read_chain(path: &Path) -> Vec<CertificateDer<'static>> {
    let chain = CertificateDer::pem_file_iter(path).expect("a file");
    chain.collect::<Result<_, _>>().expect("PEM")
}

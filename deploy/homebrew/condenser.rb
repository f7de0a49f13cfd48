# For a tap of your own; the address and the digest are those of the source archive of a release (CONTRIBUTING.md).
class Condenser < Formula
  include Language::Python::Virtualenv

  desc "Proxy that condenses the history of conversations with language models"
  url "@ADDRESS@"
  sha256 "@SHA256@"
  license "Apache-2.0"

  depends_on "python@3.13"

  def install
    venv = virtualenv_create(libexec, "python3.13")
    # Every package is held by its hash, as in the image.
    system libexec/"bin/python", "-m", "pip", "install", "--require-hashes", "--requirement", "requirements/base.txt"
    venv.pip_install_and_link buildpath
    generate_completions_from_executable(bin/"condenser", "completion", shells: [:bash, :zsh, :fish])
  end

  service do
    run [opt_bin/"condenser", "serve", "--single-user"]
    keep_alive true
    log_path var/"log/condenser.log"
    error_log_path var/"log/condenser.log"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/condenser --version")
    assert_match "fit the model's window", shell_output("#{bin}/condenser demo")
  end
end

"""A GAN with alternating optimizers, as in the DCGAN example."""

import torch
from torch import nn


class GAN(nn.Module):
    def __init__(self, latent=4):
        super().__init__()
        self.generator = nn.Sequential(
            nn.Linear(latent, 16), nn.LeakyReLU(0.2), nn.Linear(16, 8), nn.Tanh()
        )
        self.discriminator = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))


def build():
    return GAN()


def train(gan, epochs=3, latent=4):
    netG, netD = gan.generator, gan.discriminator
    criterion = nn.BCEWithLogitsLoss()
    optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-3, betas=(0.5, 0.999))
    optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-3, betas=(0.5, 0.999))
    fixed_noise = torch.randn(4, latent)
    for epoch in range(epochs):
        real = torch.randn(8, 8)
        ones, zeros = torch.ones(8, 1), torch.zeros(8, 1)

        netD.zero_grad()
        errD_real = criterion(netD(real), ones)
        errD_real.backward()
        D_x = torch.sigmoid(netD(real)).mean().item()
        fake = netG(torch.randn(8, latent))
        errD_fake = criterion(netD(fake.detach()), zeros)
        errD_fake.backward()
        errD = errD_real + errD_fake
        optimizerD.step()

        netG.zero_grad()
        output = netD(fake)
        errG = criterion(output, ones)
        errG.backward()
        optimizerG.step()
        print(f"[{epoch}] D {errD.item():.3f} G {errG.item():.3f} D(x) {D_x:.3f}")
        with torch.no_grad():
            grid = netG(fixed_noise).detach().cpu()
    return grid
